"""Fig. 5(b): δ by the Laplace evidence on the synthetic regression, 21 values and 10 draws, at minima."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dnn2gp.datasets import synthetic_draws
from dnn2gp.ensemble import Ensemble
from dnn2gp.experiments.curves import Point, tuning_curve
from dnn2gp.minimise import minimise
from dnn2gp.nets import mlp
from dnn2gp.tuning_result import TuningResult

# Values of δ that are trained at once: 70 networks of the paper's ten draws. Each group is on disk when it is done.
_TOGETHER = 7


@dataclass(frozen=True)
class TuneSyntheticConfig:
    """A network of one hidden layer, σ = 1, δ on a logarithmic grid."""

    deltas: tuple[float, ...] = tuple(torch.logspace(-2, 2, 21, dtype=torch.float64).tolist())
    num_draws: int = 10
    width: int = 20
    sigma: float = 1.0
    max_iterations: int = 1000
    seed: int = 0

    @staticmethod
    def preset(name: str) -> TuneSyntheticConfig:
        """`paper`, or `smoke`: a little of it."""
        if name == "smoke":
            return TuneSyntheticConfig(deltas=(0.1, 0.63, 10.0), num_draws=2, max_iterations=50)
        return TuneSyntheticConfig()


def run(config: TuneSyntheticConfig, folder: Path | None = None, resume: bool = False) -> TuningResult:
    """All draws of some settings as one batch of networks, trained by damped Gauss-Newton steps."""
    draws = synthetic_draws(config.num_draws)

    def build() -> nn.Module:
        return mlp(2, 1, width=config.width).double()

    def train(ensemble: Ensemble, weights: Tensor) -> Tensor:
        return minimise(ensemble, weights, max_iterations=config.max_iterations).weights

    points = [Point(delta, build, delta, config.sigma) for delta in config.deltas]
    return tuning_curve(
        "prior_precision",
        points,
        draws,
        train,
        seed=config.seed,
        together=_TOGETHER,
        purpose=asdict(config),
        folder=folder,
        resume=resume,
    )
