"""What the experiments in one or two dimensions share: a small network at the best of some minima, and a plane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dnn2gp.likelihoods import Likelihood
from dnn2gp.tune.ensemble import Ensemble, initial_weights, write_weights
from dnn2gp.tune.minimise import minimise


@runtime_checkable
class TrainingEffort(Protocol):
    """How a small network is trained."""

    @property
    def prior_precision(self) -> float:
        """δ."""
        ...

    @property
    def restarts(self) -> int:
        """Trainings from other first weights."""
        ...

    @property
    def max_iterations(self) -> int:
        """Gauss-Newton steps of each."""
        ...

    @property
    def seed(self) -> int:
        """Of the first weights."""
        ...


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where the best training ended."""

    network: nn.Module
    relative_gradient: float


def train_best(
    build: Callable[[], nn.Module],
    inputs: Float[Tensor, "N I"],
    targets: Shaped[Tensor, "N *out"],
    likelihood: Likelihood,
    effort: TrainingEffort,
) -> Minimum:
    """Of several trainings to a minimum of the summed loss plus ½ δ wᵀw, the one of the smallest loss."""
    delta = torch.full((effort.restarts,), effort.prior_precision, dtype=torch.float64)
    network = seeded(build, effort.seed)
    ensemble = Ensemble(network, inputs[None], targets[None], likelihood, delta)
    first = initial_weights(build, [1000 * effort.seed + member for member in range(effort.restarts)])
    found = minimise(ensemble, first, max_iterations=effort.max_iterations)
    best = int(found.loss.argmin())
    write_weights(network, found.weights[best])
    return Minimum(network, found.relative_gradient[best].item())


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A fresh module; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def flat_weights(network: nn.Module) -> np.ndarray:
    """All its weights in one vector."""
    return torch.nn.utils.parameters_to_vector(network.parameters()).detach().numpy()


def sides(
    extent: tuple[float, float, float, float], resolution: int
) -> tuple[Float[Tensor, " W"], Float[Tensor, " H"], Float[Tensor, "HW 2"]]:
    """The coordinates along both sides of a plane (left, right, low, high), and all its points, row by row."""
    left, right, low, high = extent
    x, y = (torch.linspace(*ends, resolution, dtype=torch.float64) for ends in ((left, right), (low, high)))
    return x, y, torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)
