"""Evidence, training error and test error along one hyperparameter, for several draws of a regression: Figs. 5, 6."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.evidence.tuning_result import EVIDENCE, Trial, TuningResult
from dnn2gp.likelihoods import GaussianLikelihood
from dnn2gp.paper.datasets import Draws
from dnn2gp.plots.tuning import Panel
from dnn2gp.support.memory import chunks
from dnn2gp.support.progress import bar
from dnn2gp.tune.ensemble import Ensemble, initial_weights, seeded
from dnn2gp.tune.jobs import Job, JobFolder
from dnn2gp.tune.one_thread import one_thread


def curve_arrays(found: TuningResult, name: str, prefix: str) -> dict[str, np.ndarray]:
    """PREFIX_VALUE_mean and PREFIX_VALUE_stderr along the hyperparameter, for every value of the trials.

    For the relative gradient, whose mean says little, the median and the maximum over the draws instead.
    """
    arrays: dict[str, np.ndarray] = {}
    for value in found.values:
        curve, own = found.curve(name, value), f"{prefix}_{value}"
        if value == GRADIENT:
            draws = [[t.values[value] for t in found.trials if t.settings[name] == each] for each in curve.settings]
            arrays |= {f"{own}_median": np.median(draws, 1), f"{own}_max": np.max(draws, 1)}
        else:
            arrays |= {f"{own}_mean": np.array(curve.mean), f"{own}_stderr": np.array(curve.stderr)}
    return arrays


@dataclass(frozen=True)
class Stars:
    """The positions of the largest evidence and of the smallest test error on a curve, marked by stars."""

    evidence: int
    test: int
    excess: float
    """The test error at the largest evidence relative to the smallest, minus 1."""

    @staticmethod
    def of(arrays: Mapping[str, np.ndarray], prefix: str) -> Stars:
        """The stars of the means along the hyperparameter; a point that diverged is neither."""
        evidence, error = arrays[f"{prefix}_evidence_mean"], arrays[f"{prefix}_test_error_mean"]
        chosen, best = int(np.nanargmax(evidence)), int(np.nanargmin(error))
        return Stars(chosen, best, float(error[chosen] / error[best] - 1))

    @property
    def steps(self) -> str:
        """Their distance on the grid, in words."""
        count = abs(self.evidence - self.test)
        return f"{count} grid step{'' if count == 1 else 's'}"

    @property
    def near(self) -> bool:
        """Whether they are at most one grid step apart."""
        return abs(self.evidence - self.test) <= 1


def curve_panel(
    own: Mapping[str, np.ndarray], prefix: str, settings: np.ndarray, label: str, title: str, *, log_x: bool = True
) -> Panel:
    """The evidence and both errors of a curve."""

    def band(name: str) -> tuple[np.ndarray, np.ndarray]:
        return own[f"{prefix}_{name}_mean"], own[f"{prefix}_{name}_stderr"]

    errors = {"train": band("train_error"), "test": band("test_error")}
    return Panel(settings, band("evidence"), errors, label, title, log_x)


Build: TypeAlias = "Callable[[], nn.Module]"
Train: TypeAlias = "Callable[[Ensemble, Tensor], Tensor]"
Values: TypeAlias = "Callable[[Members], dict[str, Tensor]]"

GRADIENT = "relative_gradient"
# Bytes for the curvature matrices held at a time, and the number of such matrices per member.
_BUDGET, _MATRICES = 400_000_000, 5


@dataclass(frozen=True)
class Point:
    """One point of a curve: the value of the hyperparameter, and the network, δ and σ that it stands for."""

    value: float | int
    build: Build
    prior_precision: float
    sigma: float


@dataclass(frozen=True, eq=False)
class Members:
    """The networks of some points, one per point and draw: what to train, and what to test it on."""

    ensemble: Ensemble
    """With noise 1 and δσ², whose minima are those for σ and δ."""
    first: Float[Tensor, "B P"]
    sigma: Float[Tensor, " B"]
    test_inputs: Float[Tensor, "B M I"]
    test_targets: Float[Tensor, "B M 1"]
    scale: Float[Tensor, " B"]

    @property
    def prior_precision(self) -> Float[Tensor, " B"]:
        """δ."""
        return self.ensemble.prior_precision[:, 0] / self.sigma.square()

    def take(self, part: slice) -> Members:
        """The members in this range."""
        own = self.ensemble.take(torch.arange(len(self.first))[part])
        x, y = self.test_inputs[part], self.test_targets[part]
        return Members(own, self.first[part], self.sigma[part], x, y, self.scale[part])

    def errors(self, weights: Float[Tensor, "B P"]) -> dict[str, Float[Tensor, " B"]]:
        """The mean squared errors of the networks at these weights, in the units of the target."""
        data = {
            "test_error": (self.test_inputs, self.test_targets),
            "train_error": (self.ensemble.inputs, self.ensemble.targets),
        }
        with torch.no_grad():
            return {
                name: (self.ensemble.outputs(weights, inputs) - targets).square().mean((1, 2)) * self.scale.square()
                for name, (inputs, targets) in data.items()
            }


def laplace_values(train: Train) -> Values:
    """The Laplace evidence at trained weights, the errors there, and the relative gradient."""

    def values(members: Members) -> dict[str, Tensor]:
        weights = train(members.ensemble, members.first)
        each = 8 * _MATRICES * weights.shape[1] ** 2
        parts = list(chunks(len(weights), max(1, _BUDGET // each)))
        with one_thread():  # threads that share small operations wait for one another
            found = [_laplace_values(members.take(part), weights[part]) for part in parts]
        return {name: torch.cat([part[name] for part in found]) for name in found[0]}

    return values


def evidence_curve(
    name: str,
    points: Sequence[Point],
    draws: Draws,
    values: Values,
    *,
    seed: int = 0,
    together: int = 1,
    purpose: Mapping[str, object] | None = None,
    folder: Path | None = None,
    resume: bool = False,
) -> TuningResult:
    """Train a network for every point and draw, and record the values of each.

    values    trains some members, and returns one value per member under each name, "evidence" among them
    together  the number of points that are trained as one batch
    purpose   everything else that the values depend on; a folder with a different purpose raises an error
    folder    where finished points are stored; `resume` continues from them
    """
    kept = None
    if folder is not None:
        own = {"name": name, "points": [point.value for point in points], "draws": draws.source, "seed": seed}
        kept = JobFolder(folder, {**own, **(purpose or {})}, resume)
    jobs = {point.value: [Job({name: point.value}, draw) for draw in range(draws.count)] for point in points}
    found: dict[float | int, list[Trial]] = {}
    for point in points:
        trials = [kept.load(job) for job in jobs[point.value]] if kept is not None else [None]
        if all(trial is not None for trial in trials):
            found[point.value] = [trial for trial in trials if trial is not None]
    # The groups are those of an uninterrupted run: the last digits of a network depend on its batch.
    groups = [points[start : start + together] for start in range(0, len(points), together)]
    left = [group for group in groups if any(point.value not in found for point in group)]
    with bar(f"curve in {name}", len(points), len(points) - sum(map(len, left))) as advance:
        for group in left:
            for point, rows in zip(group, _tried(group, draws, values, seed), strict=True):
                pairs = zip(jobs[point.value], rows, strict=True)
                own = [Trial(job.settings, each, job.repeat) for job, each in pairs]
                for job, trial in zip(jobs[point.value], own, strict=True):
                    if kept is not None:
                        kept.save(job, trial)
                found[point.value] = own
                advance(f"log evidence {sum(trial.evidence for trial in own) / len(own):.2f} at {point.value:.3g}")
    return TuningResult.of("grid", [trial for point in points for trial in found[point.value]])


def _tried(group: Sequence[Point], draws: Draws, values: Values, seed: int) -> list[list[dict[str, float]]]:
    """The values of each draw at each point; all networks are trained as one ensemble."""
    build, count = group[0].build, draws.count
    draw = torch.arange(count).repeat(len(group))
    sigma = torch.tensor([point.sigma for point in group], dtype=torch.float64).repeat_interleave(count)
    delta = torch.tensor([point.prior_precision for point in group], dtype=torch.float64).repeat_interleave(count)
    inputs, targets = draws.train_inputs[draw], draws.train_targets[draw]
    ensemble = Ensemble(seeded(build, seed), inputs, targets, GaussianLikelihood(1.0), delta * sigma**2)
    first = initial_weights(build, first_seeds(seed, count))[draw]
    tested = (draws.test_inputs[draw], draws.test_targets[draw])
    columns = values(Members(ensemble, first, sigma, *tested, draws.scale[draw]))
    rows = [
        {name: column[position].item() for name, column in columns.items()} for position in range(len(group) * count)
    ]
    return [rows[start : start + count] for start in range(0, len(rows), count)]


def first_seeds(seed: int, count: int) -> list[int]:
    """The seeds of the initial weights of each draw, the same at every point."""
    return [seed * 1000 + position for position in range(count)]


def _laplace_values(members: Members, weights: Float[Tensor, "B P"]) -> dict[str, Tensor]:
    curvature = members.ensemble.curvature(weights)
    return {
        EVIDENCE: members.ensemble.evidence(weights, curvature, members.sigma.square()),
        **members.errors(weights),
        GRADIENT: curvature.relative_gradient,
    }
