"""What the figures in one and two dimensions begin with: networks at minima, steps of VOGN, and a grid of points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dnn2gp.likelihoods import Likelihood
from dnn2gp.optim.methods import VOGN
from dnn2gp.support.errors import InputError
from dnn2gp.tune.ensemble import Ensemble, initial_weights, seeded, write_weights
from dnn2gp.tune.minimise import Minima, minimise
from dnn2gp.weights.online_newton import check_positive, check_rate


def plane_grid(
    extent: tuple[float, float, float, float], resolution: int
) -> tuple[Float[Tensor, " W"], Float[Tensor, " H"], Float[Tensor, "HW 2"]]:
    """The coordinates along both sides of (left, right, low, high), and all points of the grid, row by row."""
    left, right, low, high = extent
    x, y = (torch.linspace(*ends, resolution, dtype=torch.float64) for ends in ((left, right), (low, high)))
    return x, y, torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)


def train_restarts(
    build: Callable[[], nn.Module],
    data: tuple[Float[Tensor, "N I"], Shaped[Tensor, "N *out"]],
    likelihood: Likelihood,
    prior_precision: float,
    *,
    restarts: int,
    max_iterations: int,
    seed: int,
) -> tuple[nn.Module, Minima]:
    """Train from several initial weights to minima of the summed loss plus ½ δ wᵀw.

    Returns a module at the minimum with the smallest loss, and all minima.
    """
    inputs, targets = data
    network = seeded(build, seed)
    delta = torch.full((restarts,), prior_precision, dtype=torch.float64)
    ensemble = Ensemble(network, inputs[None], targets[None], likelihood, delta)
    first = initial_weights(build, [1000 * seed + member for member in range(restarts)])
    found = minimise(ensemble, first, max_iterations=max_iterations)
    write_weights(network, found.weights[found.best])
    return network, found


@dataclass(frozen=True)
class VognSettings:
    """How many steps of VOGN to take, and with which rates and samples."""

    steps: int = 5000
    lr: float = 0.01
    """β of the mean. Where residuals are smaller than σ, Ĥ is smaller than the curvature, and β near 1 overshoots."""
    precision_lr: float = 0.1
    """β' of the precision."""
    num_samples: int = 25
    """S."""
    initial_precision: float = 1.0

    def __post_init__(self) -> None:
        check_rate("lr", self.lr)
        check_rate("precision_lr", self.precision_lr)
        check_positive("initial_precision", self.initial_precision)
        if self.steps < 1 or self.num_samples < 1:
            raise InputError(f"steps, num_samples: expected integers ≥ 1; got {self.steps} and {self.num_samples}.")

    def optimizer(
        self, network: nn.Module, likelihood: Likelihood, num_data: int, prior_precision: float, seed: int = 0
    ) -> VOGN:
        """The optimizer that takes these steps from the weights of the network."""
        return VOGN(
            network,
            likelihood,
            num_data,
            lr=self.lr,
            precision_lr=self.precision_lr,
            prior_precision=prior_precision,
            num_samples=self.num_samples,
            initial_precision=self.initial_precision,
            seed=seed,
        )
