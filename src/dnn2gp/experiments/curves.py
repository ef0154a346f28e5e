"""Evidence, training and test error along one hyperparameter, for several draws of a regression: Figs. 5 and 6."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.datasets import Draws
from dnn2gp.ensemble import Ensemble, initial_weights
from dnn2gp.likelihoods import GaussianLikelihood
from dnn2gp.progress import bar
from dnn2gp.tune.jobs import Job, JobFolder
from dnn2gp.tuning_result import EVIDENCE, Trial, TuningResult

Build: TypeAlias = "Callable[[], nn.Module]"
Train: TypeAlias = "Callable[[Ensemble, Tensor], Tensor]"


@dataclass(frozen=True)
class Point:
    """One setting: its place on the curve, and what it means for the networks."""

    value: float | int
    build: Build
    prior_precision: float
    sigma: float


def tuning_curve(
    name: str,
    points: Sequence[Point],
    draws: Draws,
    train: Train,
    *,
    seed: int = 0,
    together: int = 1,
    purpose: Mapping[str, object] | None = None,
    folder: Path | None = None,
    resume: bool = False,
) -> TuningResult:
    """Train a network for every point and draw, `together` points at a time as one batch, and note what came of them.

    train   weights of an ensemble → trained weights; a regression with noise σ is trained as one with noise 1 and δσ²
    purpose all else that the trials depend on: a folder with another one is not gone on with
    folder  where the trials of finished points are kept; `resume` goes on with them
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
    left = [point for point in points if point.value not in found]
    with bar(f"curve in {name}", len(points), len(found)) as advance:
        for start in range(0, len(left), together):
            group = left[start : start + together]
            for point, values in zip(group, _tried(group, draws, train, seed), strict=True):
                pairs = zip(jobs[point.value], values, strict=True)
                own = [Trial(job.settings, each, job.repeat) for job, each in pairs]
                for job, trial in zip(jobs[point.value], own, strict=True):
                    if kept is not None:
                        kept.save(job, trial)
                found[point.value] = own
                advance(f"log evidence {sum(trial.evidence for trial in own) / len(own):.2f} at {point.value:.3g}")
    return TuningResult.of("grid", [trial for point in points for trial in found[point.value]])


def _tried(group: Sequence[Point], draws: Draws, train: Train, seed: int) -> list[list[dict[str, float]]]:
    """The values of each draw at each point; networks of one architecture are trained as one ensemble."""
    build, count = group[0].build, draws.count
    draw = torch.arange(count).repeat(len(group))
    sigma = torch.tensor([point.sigma for point in group], dtype=torch.float64).repeat_interleave(count)
    delta = torch.tensor([point.prior_precision for point in group], dtype=torch.float64).repeat_interleave(count)
    inputs, targets = draws.train_inputs[draw], draws.train_targets[draw]
    ensemble = Ensemble(build(), inputs, targets, GaussianLikelihood(1.0), delta * sigma**2)
    first = initial_weights(build, [seed * 1000 + position for position in range(count)])[draw]
    weights = train(ensemble, first)
    curvature = ensemble.curvature(weights)
    evidence = ensemble.evidence(weights, curvature, sigma.square())
    scale = draws.scale[draw].square()
    test = _squared_error(ensemble, weights, draws.test_inputs[draw], draws.test_targets[draw]) * scale
    error = _squared_error(ensemble, weights, inputs, targets) * scale
    columns = {
        EVIDENCE: evidence,
        "test_error": test,
        "train_error": error,
        "relative_gradient": curvature.relative_gradient,
    }
    rows = [
        {name: column[position].item() for name, column in columns.items()} for position in range(len(group) * count)
    ]
    return [rows[start : start + count] for start in range(0, len(rows), count)]


def _squared_error(ensemble: Ensemble, weights: Tensor, inputs: Tensor, targets: Tensor) -> Float[Tensor, " B"]:
    with torch.no_grad():
        return (ensemble.outputs(weights, inputs) - targets).square().mean((1, 2))
