"""A small network trained to several minima: what the figures in one and two dimensions begin with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dnn2gp.likelihoods import Likelihood
from dnn2gp.tune.ensemble import Ensemble, initial_weights, seeded, write_weights
from dnn2gp.tune.minimise import Minima, minimise


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
