"""Fig. 6: δ, σ and the width by the Laplace evidence on the twenty splits of Red Wine Quality."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.network.mlp import mlp
from dnn2gp.paper.adam_ensemble import adam
from dnn2gp.paper.curves import Build, Point, Stars, curve_arrays, laplace_values, tuning_curve
from dnn2gp.paper.datasets import wine_splits
from dnn2gp.paper.datasets.wine import PAPERS
from dnn2gp.paper.figure_result import FigureResult, check_preset, plain, written
from dnn2gp.paper.paper_curves import WINE, error_claim, evidence_claim
from dnn2gp.plots.report.claim import Claim
from dnn2gp.support.errors import InputError
from dnn2gp.tune.ensemble import Ensemble

DELTA, SIGMA, WIDTH = "prior_precision", "sigma", "width"
SETTINGS = (DELTA, SIGMA, WIDTH)


def _logspace(low: float, high: float, count: int = 30) -> tuple[float, ...]:
    return tuple(torch.logspace(low, high, count, dtype=torch.float64).tolist())


@dataclass(frozen=True)
class TuneWineConfig:
    """Two hidden layers of 20 units for δ and σ, one hidden layer for the width."""

    deltas: tuple[float, ...] = _logspace(-1.0, 3.6)
    sigmas: tuple[float, ...] = _logspace(-1.0, 1.0)
    widths: tuple[int, ...] = tuple(torch.linspace(1, 150, 30).round().int().tolist())
    num_splits: int = 20
    epochs: int = 1000
    """Of full-batch Adam; half as many again for the width."""
    lr: float = 0.05
    factor: float = 0.8
    """By which the learning rate falls where the loss rests."""
    seed: int = 0

    @staticmethod
    def preset(name: str) -> TuneWineConfig:
        """`paper`, or `smoke`: a little of it."""
        if check_preset(name) == "smoke":
            return TuneWineConfig((1.0, 24.0), (0.3, 0.64), (1, 3), num_splits=2, epochs=20)
        return TuneWineConfig()

    def points(self, setting: str) -> list[Point]:
        """Where a curve is looked at: σ = 0.64 for δ, δ = 30 for σ, σ = 0.64 and δ = 3 for the width."""
        if setting == DELTA:
            return [Point(delta, _network(20, 2), delta, 0.64) for delta in self.deltas]
        if setting == SIGMA:
            return [Point(sigma, _network(20, 2), 30.0, sigma) for sigma in self.sigmas]
        if setting == WIDTH:
            return [Point(width, _network(width, 1), 3.0, 0.64) for width in self.widths]
        raise InputError(f"setting: expected one of {', '.join(SETTINGS)}; got {setting!r}.")


def run(config: TuneWineConfig, folder: Path | None = None, resume: bool = False) -> FigureResult:
    """All three curves. In `folder` each has a folder of its own, with what is done; `resume` goes on with it."""
    begin = time.perf_counter()
    arrays: dict[str, np.ndarray] = {}
    for setting in SETTINGS:
        found = curve(config, setting, None if folder is None else folder / setting, resume)
        arrays[f"{setting}_values"] = np.array(found.curve(setting).settings)
        arrays |= curve_arrays(found, setting, setting)
    arrays["source"] = np.array(wine_splits(config.num_splits).source)
    return FigureResult("tune_wine", plain(config), arrays, claims(arrays, config), time.perf_counter() - begin)


def curve(config: TuneWineConfig, setting: str, folder: Path | None = None, resume: bool = False) -> TuningResult:
    """One value of a setting after another, the networks of all splits as one batch."""
    points, draws = config.points(setting), wine_splits(config.num_splits)
    epochs = config.epochs * 3 // 2 if setting == WIDTH else config.epochs

    def train(ensemble: Ensemble, weights: Tensor) -> Tensor:
        return adam(ensemble, weights, lr=config.lr, epochs=epochs, factor=config.factor)

    return tuning_curve(
        setting,
        points,
        draws,
        laplace_values(train),
        seed=config.seed,
        purpose={"splits": config.num_splits, "epochs": epochs, "lr": config.lr, "factor": config.factor},
        folder=folder,
        resume=resume,
    )


def _network(width: int, depth: int) -> Build:
    def build() -> nn.Module:
        return mlp(11, 1, width=width, depth=depth).double()

    return build


def claims(arrays: dict[str, np.ndarray], config: TuneWineConfig) -> tuple[Claim, ...]:
    """The curve in δ is the paper's, point by point; each choice by evidence has nearly the best test error."""
    deltas, stars = arrays[f"{DELTA}_values"], Stars.of(arrays, DELTA)
    evidence, theirs_too = arrays[f"{DELTA}_evidence_mean"], str(arrays["source"]) == PAPERS
    chosen, peak = float(deltas[stars.evidence]), WINE.deltas[int(np.argmax(WINE.evidence))]
    step = WINE.deltas[1] / WINE.deltas[0]
    claims = [
        Claim(
            "δ: the largest evidence",
            f"at δ = {peak:.3g} (here: within one grid step)",
            f"at δ = {chosen:.3g} ({written(evidence[stars.evidence], '.1f')} nats; {arrays['source']})",
            bool(abs(np.log(chosen / peak)) < 1.01 * np.log(step)) if theirs_too else None,
        ),
        evidence_claim("δ: the evidence along it", evidence, deltas, WINE, 0.02, theirs_too),
        error_claim("δ: the test error along it", arrays[f"{DELTA}_test_error_mean"], deltas, WINE, theirs_too),
        Claim(
            "δ: the test error at the largest evidence",
            "low (here: within 2 % of the grid's best)",
            _words(arrays, DELTA),
            stars.excess < 0.02,
        ),
    ]
    for setting, symbol in ((SIGMA, "σ"), (WIDTH, "width")):
        stars = Stars.of(arrays, setting)
        claims.append(
            Claim(
                f"{symbol}: the choice of the evidence",
                "low test error (here: within one grid step of the best, or within 2 % of it)",
                _words(arrays, setting),
                stars.near or stars.excess < 0.02,
            )
        )
    return tuple(claims)


def _words(arrays: dict[str, np.ndarray], setting: str) -> str:
    """Both stars in words."""
    stars, values, error = Stars.of(arrays, setting), arrays[f"{setting}_values"], arrays[f"{setting}_test_error_mean"]
    return (
        f"{error[stars.evidence]:.4f} at {values[stars.evidence]:.3g}, {stars.excess:.1%} above the best, "
        f"{error[stars.test]:.4f} at {values[stars.test]:.3g}"
    )
