"""Fig. 6: δ, σ or the width by the Laplace evidence on the twenty splits of Red Wine Quality."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dnn2gp.datasets import wine_splits
from dnn2gp.ensemble import Ensemble
from dnn2gp.errors import InputError
from dnn2gp.experiments.curves import Build, Point, tuning_curve
from dnn2gp.minimise import adam
from dnn2gp.nets import mlp
from dnn2gp.tuning_result import TuningResult

SETTINGS = ("prior_precision", "sigma", "width")


def _logspace(low: float, high: float, count: int = 30) -> tuple[float, ...]:
    return tuple(torch.logspace(low, high, count, dtype=torch.float64).tolist())


@dataclass(frozen=True)
class TuneWineConfig:
    """One of the three curves: two hidden layers of 20 units for δ and σ, one hidden layer for the width."""

    setting: str = "prior_precision"
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
    def preset(name: str, setting: str = "prior_precision") -> TuneWineConfig:
        """`paper`, or `smoke`: a little of it."""
        if name == "smoke":
            return TuneWineConfig(setting, (1.0, 24.0), (0.3, 0.64), (1, 3), num_splits=2, epochs=20)
        return TuneWineConfig(setting)

    def points(self) -> list[Point]:
        """Where the curve is looked at: σ = 0.64 for δ, δ = 30 for σ, σ = 0.64 and δ = 3 for the width."""
        if self.setting == "prior_precision":
            return [Point(delta, _network(20, 2), delta, 0.64) for delta in self.deltas]
        if self.setting == "sigma":
            return [Point(sigma, _network(20, 2), 30.0, sigma) for sigma in self.sigmas]
        if self.setting == "width":
            return [Point(width, _network(width, 1), 3.0, 0.64) for width in self.widths]
        raise InputError(f"setting: expected one of {', '.join(SETTINGS)}; got {self.setting!r}.")


def run(config: TuneWineConfig, folder: Path | None = None, resume: bool = False) -> TuningResult:
    """One setting after another, the networks of its splits as one batch."""
    points, draws = config.points(), wine_splits(config.num_splits)
    epochs = config.epochs * 3 // 2 if config.setting == "width" else config.epochs

    def train(ensemble: Ensemble, weights: Tensor) -> Tensor:
        return adam(ensemble, weights, lr=config.lr, epochs=epochs, factor=config.factor)

    return tuning_curve(
        config.setting, points, draws, train, seed=config.seed, purpose=asdict(config), folder=folder, resume=resume
    )


def _network(width: int, depth: int) -> Build:
    def build() -> nn.Module:
        return mlp(11, 1, width=width, depth=depth).double()

    return build
