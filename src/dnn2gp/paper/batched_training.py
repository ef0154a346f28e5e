"""Adam and VOGN with all data in every step, for all members of an ensemble of tanh networks in a regression.

Fast paths for Figs. 5 and 6, which train thousands of small networks. Tests hold them equal to the optimizers that
train one network at a time: torch's Adam with ReduceLROnPlateau, and `VOGN`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.likelihoods import GaussianLikelihood
from dnn2gp.paper.batched_mlp import LayerSizes, Passes
from dnn2gp.paper.thread_pool import check_stopped, equal_parts, in_threads
from dnn2gp.paper.vogn_settings import VognSettings
from dnn2gp.support.errors import DivergedError, InputError
from dnn2gp.tune.ensemble import Ensemble
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.structures import DiagonalPrecision

T = TypeVar("T")
# Units of one layer, over all examples and samples of the members trained at a time: they stay in the cache.
_UNITS = 2**19
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
# Steps of VOGN between two checks that all weights are finite.
_CHECK = 100


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
    """Train every member on Σ_n ℓ_n(w) + ½ δ wᵀw, from its initial weights; each has its own learning rate schedule.

    The schedule is torch's ReduceLROnPlateau: the rate is multiplied by `factor` after more than `patience` epochs
    that do not lower the best loss by a fraction of 1e-4. The weights end near a minimum, not at it.
    """

    def train(part: slice, passes: Passes, delta: Tensor, first: Tensor) -> Tensor:
        return _adam(passes, delta, first.clone(), lr, epochs, factor, patience)

    return torch.cat(_trained(ensemble, weights, train, 1, dtype, "training by Adam")).double()


def vogn(
    ensemble: Ensemble,
    weights: Float[Tensor, "B P"],
    settings: VognSettings,
    generator: torch.Generator,
    *,
    dtype: torch.dtype = torch.float32,
) -> list[Gaussian]:
    """Train every member by VOGN from its initial weights, and return its q in float64.

    `generator` seeds one generator per member, so that the result does not depend on how members are batched.
    """
    seeds = torch.randint(2**62, (len(weights),), generator=generator).tolist()

    def train(part: slice, passes: Passes, delta: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        return _vogn(passes, delta, first, settings, seeds[part])

    found = _trained(ensemble, weights, train, settings.num_samples, dtype, "training by VOGN")
    return [
        Gaussian(mean, DiagonalPrecision(precision))
        for means, precisions in found
        for mean, precision in zip(means.double(), precisions.double(), strict=True)
    ]


def _trained(
    ensemble: Ensemble,
    weights: Float[Tensor, "B P"],
    train: Callable[[slice, Passes, Tensor, Tensor], T],
    num_samples: int,
    dtype: torch.dtype,
    description: str,
) -> list[T]:
    """What `train` returns for each part of the members, given their passes, δ and initial weights."""
    likelihood = ensemble.likelihood
    if not isinstance(likelihood, GaussianLikelihood) or likelihood.sigma.numel() != 1:
        raise InputError(f"ensemble: expected GaussianLikelihood(σ) with one σ; got {likelihood}.")
    if not weights.isfinite().all():
        raise InputError("weights: expected finite numbers; got NaN or infinite ones.")
    sizes, sigma = LayerSizes.of(ensemble.network), likelihood.sigma.item()
    inputs, targets = (part.to(dtype).expand(ensemble.size, -1, -1) for part in (ensemble.inputs, ensemble.targets))
    delta, first = ensemble.prior_precision.to(dtype), weights.to(dtype)

    def work(part: slice) -> T:
        return train(part, Passes(sizes, inputs[part], targets[part], num_samples, sigma), delta[part], first[part])

    units = inputs.shape[1] * num_samples * max(shape[0] for shape in sizes.shapes)
    return in_threads(work, equal_parts(ensemble.size, _UNITS // units), description)


def _adam(
    passes: Passes,
    delta: Float[Tensor, "b #P"],
    weights: Float[Tensor, "b P"],
    lr: float,
    epochs: int,
    factor: float,
    patience: int,
) -> Float[Tensor, "b P"]:
    """All epochs of some members; changes `weights` in place."""
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    rates = torch.full_like(weights[:, :1], lr)
    best, waited = torch.full_like(weights[:, 0], torch.inf), torch.zeros_like(weights[:, 0])
    for epoch in range(1, epochs + 1):
        check_stopped()
        loss = passes.loss(weights[:, None]) + 0.5 * (delta * weights.square()).sum(1)
        gradient = passes.gradient() + delta * weights
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


def _vogn(
    passes: Passes,
    delta: Float[Tensor, "b #P"],
    mean: Float[Tensor, "b P"],
    settings: VognSettings,
    seeds: Sequence[int],
) -> tuple[Float[Tensor, "b P"], Float[Tensor, "b P"]]:
    """The means and precisions of some members after all steps: the update of `OnlineNewton`, without momentum."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    noise = mean.new_empty(len(mean), settings.num_samples, mean.shape[1])
    precision = torch.full_like(mean, settings.initial_precision)
    for step in range(1, settings.steps + 1):
        check_stopped()
        for own, generator in zip(noise, generators, strict=True):
            own.normal_(generator=generator)
        passes.loss(torch.addcmul(mean[:, None], noise, precision.rsqrt()[:, None]))
        gradient, squares = (total / settings.num_samples for total in (passes.gradient(), passes.squares()))
        precision = torch.lerp(precision, squares + delta, settings.precision_lr)
        mean = mean - settings.lr * (gradient + delta * mean) / precision
        if step % _CHECK == 0 or step == settings.steps:
            _check_finite(mean, precision, step)
    return mean, precision


def _check_finite(mean: Float[Tensor, "b P"], precision: Float[Tensor, "b P"], step: int) -> None:
    bad = ~(mean.isfinite() & precision.isfinite()).all(1)
    if bad.any():
        raise DivergedError(
            f"VOGN: the weights of {int(bad.sum())} of {len(bad)} members are NaN or infinite after {step} steps. "
            "Lower lr or precision_lr, or raise the initial precision."
        )
