"""Full-batch Adam for an ensemble of tanh networks in a regression, with gradients by hand."""

from __future__ import annotations

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.likelihoods import GaussianLikelihood
from dnn2gp.paper.mlp_passes import Passes, Sizes
from dnn2gp.paper.threads import equal_parts, go_on, in_threads
from dnn2gp.support.errors import InputError
from dnn2gp.tune.ensemble import Ensemble

# Units of one layer, of all examples of some members, that are computed at a time: they then stay in the cache.
_UNITS = 2**19
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


def adam(
    ensemble: Ensemble,
    weights: Float[Tensor, "B P"],
    *,
    lr: float,
    epochs: int,
    factor: float = 1.0,
    patience: int = 10,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B P"]:
    """Train every member of an ensemble on Σ_n ½ (y_n − f_n)² + ½ δ wᵀw; its own lr falls where its loss rests.

    The schedule is that of torch's ReduceLROnPlateau: by `factor` after more than `patience` epochs that do not lower
    the best loss by a share of 1e-4. What it ends at is near a minimum, not at it.
    """
    likelihood = ensemble.likelihood
    if not isinstance(likelihood, GaussianLikelihood) or not bool((likelihood.sigma == 1).all()):
        raise InputError(f"adam: expected an ensemble with GaussianLikelihood(1); got {likelihood}.")
    sizes, size = Sizes.of(ensemble.network), ensemble.size
    inputs, targets = (part.to(dtype).expand(size, -1, -1) for part in (ensemble.inputs, ensemble.targets))
    delta = ensemble.prior_precision.to(dtype)

    def train(part: slice) -> Tensor:
        passes = Passes(sizes, inputs[part], targets[part])
        return _train(passes, delta[part], weights[part].to(dtype, copy=True), lr, epochs, factor, patience)

    each = inputs.shape[1] * max(shape[0] for shape in sizes.shapes)
    return torch.cat(in_threads(train, equal_parts(size, _UNITS // each), "training by Adam")).double()


def _train(
    passes: Passes,
    delta: Float[Tensor, "b #P"],
    weights: Float[Tensor, "b P"],
    lr: float,
    epochs: int,
    factor: float,
    patience: int,
) -> Float[Tensor, "b P"]:
    """All epochs of some members; `weights` are changed in place."""
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    rates = torch.full_like(weights[:, :1], lr)
    best, waited = torch.full_like(weights[:, 0], torch.inf), torch.zeros_like(weights[:, 0])
    for epoch in range(1, epochs + 1):
        go_on()
        fit, gradient = passes.loss_and_gradient(weights)
        loss, gradient = fit + 0.5 * (delta * weights.square()).sum(1), gradient + delta * weights
        first.lerp_(gradient, 1 - _BETA1)
        second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        scale = (second.sqrt() / sqrt(1 - _BETA2**epoch)).add_(_EPSILON)
        weights.sub_(rates * first / scale / (1 - _BETA1**epoch))
        better = loss < best * (1 - 1e-4)
        best, waited = torch.where(better, loss, best), torch.where(better, 0.0, waited + 1)
        tired = waited > patience
        rates[tired] *= factor
        waited[tired] = 0.0
    return weights
