"""Fig. 6: the Laplace evidence chooses δ, σ and the width on the twenty splits of Red Wine Quality."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.network.mlp import mlp
from dnn2gp.paper.batched_training import adam
from dnn2gp.paper.datasets import wine_splits
from dnn2gp.paper.datasets.wine import PAPERS
from dnn2gp.paper.evidence_curves import Build, Point, Stars, curve_arrays, curve_panel, evidence_curve, laplace_values
from dnn2gp.paper.figure import Arrays, Drawings, FigureKind, FigureResult, Findings, Workspace, written
from dnn2gp.paper.published_curves import WINE, error_claim, evidence_claim
from dnn2gp.plots.report.section import Claim
from dnn2gp.plots.tuning import tuning_panels
from dnn2gp.support.errors import InputError
from dnn2gp.tune.ensemble import Ensemble

_DELTA, _SIGMA, _WIDTH = "prior_precision", "sigma", "width"
_SETTINGS = (_DELTA, _SIGMA, _WIDTH)


def _logspace(low: float, high: float, count: int = 30) -> tuple[float, ...]:
    return tuple(torch.logspace(low, high, count, dtype=torch.float64).tolist())


@dataclass(frozen=True)
class WineConfig:
    """Two hidden layers of 20 units for δ and σ, one hidden layer for the width."""

    deltas: tuple[float, ...] = _logspace(-1.0, 3.6)
    sigmas: tuple[float, ...] = _logspace(-1.0, 1.0)
    widths: tuple[int, ...] = tuple(torch.linspace(1, 150, 30).round().int().tolist())
    num_splits: int = 20
    epochs: int = 1000
    """Epochs of full-batch Adam; half as many again for the width."""
    lr: float = 0.05
    factor: float = 0.8
    """The factor of the learning rate each time the loss stops falling."""
    seed: int = 0

    def points(self, setting: str) -> list[Point]:
        """The points of a curve: σ = 0.64 for δ, δ = 30 for σ, σ = 0.64 and δ = 3 for the width."""
        if setting == _DELTA:
            return [Point(delta, _network(20, 2), delta, 0.64) for delta in self.deltas]
        if setting == _SIGMA:
            return [Point(sigma, _network(20, 2), 30.0, sigma) for sigma in self.sigmas]
        if setting == _WIDTH:
            return [Point(width, _network(width, 1), 3.0, 0.64) for width in self.widths]
        raise InputError(f"setting: expected one of {', '.join(_SETTINGS)}; got {setting!r}.")


def compute(config: WineConfig, workspace: Workspace) -> Findings:
    """All three curves."""
    arrays: Arrays = {}
    for setting in _SETTINGS:
        found = curve(config, setting, workspace)
        arrays[f"{setting}_values"] = np.array(found.curve(setting).settings)
        arrays |= curve_arrays(found, setting, setting)
    arrays["source"] = np.array(wine_splits(config.num_splits).source)
    return Findings(arrays)


def curve(config: WineConfig, setting: str, workspace: Workspace) -> TuningResult:
    """One value of a setting after another, the networks of all splits as one batch."""
    points, draws = config.points(setting), wine_splits(config.num_splits)
    epochs = config.epochs * 3 // 2 if setting == _WIDTH else config.epochs

    def train(ensemble: Ensemble, weights: Tensor) -> Tensor:
        return adam(ensemble, weights, lr=config.lr, epochs=epochs, factor=config.factor)

    return evidence_curve(
        setting,
        points,
        draws,
        laplace_values(train),
        seed=config.seed,
        purpose={"splits": config.num_splits, "epochs": epochs, "lr": config.lr, "factor": config.factor},
        folder=workspace.work_on(setting),
        resume=workspace.resume,
    )


def _network(width: int, depth: int) -> Build:
    def build() -> nn.Module:
        return mlp(11, 1, width=width, depth=depth).double()

    return build


def claims(arrays: Arrays, config: WineConfig) -> tuple[Claim, ...]:
    """The curve along δ matches the paper's; every choice by evidence has nearly the best test error."""
    deltas, stars = arrays[f"{_DELTA}_values"], Stars.of(arrays, _DELTA)
    evidence, theirs_too = arrays[f"{_DELTA}_evidence_mean"], str(arrays["source"]) == PAPERS
    chosen, peak = float(deltas[stars.evidence]), WINE.deltas[int(np.argmax(WINE.evidence))]
    step = WINE.deltas[1] / WINE.deltas[0]
    found = [
        Claim(
            "δ: the largest evidence",
            f"at δ = {peak:.3g} (here: within one grid step)",
            f"at δ = {chosen:.3g} ({written(evidence[stars.evidence], '.1f')} nats; {arrays['source']})",
            bool(abs(np.log(chosen / peak)) < 1.01 * np.log(step)) if theirs_too else None,
        ),
        evidence_claim("δ: the evidence along it", evidence, deltas, WINE, 0.02, theirs_too),
        error_claim("δ: the test error along it", arrays[f"{_DELTA}_test_error_mean"], deltas, WINE, theirs_too),
        Claim(
            "δ: the test error at the largest evidence",
            "low (here: within 2 % of the grid's best)",
            _both_stars(arrays, _DELTA),
            stars.excess < 0.02,
        ),
    ]
    for setting, symbol in ((_SIGMA, "σ"), (_WIDTH, "width")):
        stars = Stars.of(arrays, setting)
        found.append(
            Claim(
                f"{symbol}: the test error at the largest evidence",
                "low (here: within one grid step of the best, or within 2 % of it)",
                _both_stars(arrays, setting),
                stars.near or stars.excess < 0.02,
            )
        )
    return tuple(found)


def _both_stars(arrays: Arrays, setting: str) -> str:
    stars, values, error = Stars.of(arrays, setting), arrays[f"{setting}_values"], arrays[f"{setting}_test_error_mean"]
    return (
        f"{error[stars.evidence]:.4f} at {values[stars.evidence]:.3g}, {stars.excess:.1%} above the best "
        f"({error[stars.test]:.4f} at {values[stars.test]:.3g})"
    )


def draw(result: FigureResult) -> Drawings:
    """One panel per hyperparameter."""
    own = result.arrays
    names = {_DELTA: ("δ", "Prior precision"), _SIGMA: ("σ", "Noise"), _WIDTH: ("hidden units", "Width")}
    panels = [
        curve_panel(own, setting, own[f"{setting}_values"], label, title, log_x=setting != _WIDTH)
        for setting, (label, title) in names.items()
    ]
    return {"": tuning_panels(panels, error_label="mean squared error of quality")}


FIGURE = FigureKind(
    name="wine",
    order=60,
    title="Fig. 6: the evidence chooses δ, σ and the width on Red Wine Quality",
    caption="Means over twenty splits, with standard errors. Errors are in units of quality.",
    paper=WineConfig(),
    smoke=WineConfig((1.0, 24.0), (0.3, 0.64), (1, 3), num_splits=2, epochs=20),
    compute=compute,
    claims=claims,
    draw=draw,
)
