"""VOGN for B small networks at once: Gaussians over the weights of small networks in a regression.

Each member has data, δ and first weights of its own. A step sees all data, at S samples w_s ~ q:

    ĝ   = (1/S) Σ_s Σ_n ∇ℓ_n(w_s) + δ μ          Ĥ = (1/S) Σ_s Σ_n (∇ℓ_n(w_s))²          ℓ = ½ (y − f)² / σ²
    Σ⁻¹ ← (1 − β') Σ⁻¹ + β' (Ĥ + δ)              μ ← μ − β Σ ĝ

as `online_newton.py` has it for one network, without momentum. The sums are made by batches of matrix products
(`mlp_passes.py`); no gradient of a single example is formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.paper.mlp_passes import Passes, Sizes
from dnn2gp.paper.threads import equal_parts, go_on, in_threads
from dnn2gp.support.errors import DivergedError, InputError
from dnn2gp.weights.step_checks import check_positive, check_rate

# Bytes for the activations of the members that are trained at a time, and their gradients.
_BUDGET = 300_000_000
# Steps between two looks at whether all weights are numbers.
_LOOK = 100


@dataclass(frozen=True)
class VognSettings:
    """The steps of a training."""

    steps: int = 5000
    lr: float = 0.01
    """β, of the mean. Ĥ is smaller than the curvature where residuals are smaller than σ: a β near 1 steps too far."""
    precision_lr: float = 0.1
    """β', of the precision."""
    num_samples: int = 25
    """S."""
    initial_precision: float = 1.0
    gauss_newton: bool = False
    """Ĥ = (1/S) Σ_s diag JᵀJ/σ² instead of squared gradients, which are smaller where residuals are smaller than σ."""

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        check_rate("lr", self.lr)
        check_rate("precision_lr", self.precision_lr)
        check_positive("initial_precision", self.initial_precision)
        if self.steps < 1 or self.num_samples < 1:
            raise InputError(f"expected steps and num_samples ≥ 1; got {self.steps} and {self.num_samples}.")


@dataclass(frozen=True, eq=False)
class MeanField:
    """q = N(μ, Σ) of each member, Σ diagonal."""

    mean: Float[Tensor, "B P"]
    precision: Float[Tensor, "B P"]
    """The diagonal of Σ⁻¹."""

    def sample(self, num_samples: int, generator: torch.Generator) -> Float[Tensor, "B S P"]:
        """w = μ + Σ^½ ε."""
        noise = torch.randn(len(self.mean), num_samples, self.mean.shape[1], generator=generator, dtype=torch.float64)
        return self.mean[:, None] + noise.to(self.mean) / self.precision.sqrt()[:, None]

    def divergence(self, prior_precision: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """KL(q ‖ N(0, δ⁻¹I)) = ½ Σ_j [δ (Σ_jj + μ_j²) − 1 − log δ Σ_jj]."""
        ratio = prior_precision[:, None] / self.precision
        return 0.5 * (ratio + prior_precision[:, None] * self.mean.square() - 1 - ratio.log()).sum(1)


def vogn(
    network: nn.Module,
    inputs: Float[Tensor, "B N I"],
    targets: Float[Tensor, "B N K"],
    prior_precision: Float[Tensor, " B"],
    weights: Float[Tensor, "B P"],
    settings: VognSettings,
    generator: torch.Generator,
    *,
    sigma: float = 1.0,
    dtype: torch.dtype = torch.float32,
    memory_budget: int = _BUDGET,
) -> MeanField:
    """Train every member from its first `weights`, in `dtype`; q is returned in float64.

    network        gives the sizes: linear layers with tanh or sigmoids between them, as `nets.mlp` makes them
    generator      gives each member a generator of its own, so that chunks of members do not matter
    memory_budget  bytes for the members that are trained at a time, at least one
    """
    sizes = Sizes.of(network)
    _check(inputs, targets, prior_precision, weights, sizes)
    check_positive("sigma", sigma)
    if settings.gauss_newton and targets.shape[2] != 1:
        raise InputError(f"gauss_newton: expected networks of one output; got {targets.shape[2]}.")
    seeds = torch.randint(2**62, (len(weights),), generator=generator).tolist()
    each = _bytes(sizes, inputs.shape[1], settings.num_samples, dtype)

    def train(part: slice) -> MeanField:
        x, y, delta, first = (whole[part].to(dtype) for whole in (inputs, targets, prior_precision[:, None], weights))
        return _train(sizes, x, y, delta, first, settings, seeds[part], sigma)

    most = memory_budget // (each * torch.get_num_threads())
    found = in_threads(train, equal_parts(len(weights), most), "VOGN")
    return MeanField(torch.cat([q.mean for q in found]).double(), torch.cat([q.precision for q in found]).double())


def elbo(
    q: MeanField,
    outputs: Float[Tensor, "S B N K"],
    targets: Float[Tensor, "B N K"],
    prior_precision: Float[Tensor, " B"],
    sigma: float,
) -> Float[Tensor, " B"]:
    """E_q log p(D|w) − KL(q ‖ p), of the outputs f_w at S samples w ~ q."""
    size = targets[0].numel()
    squares = (outputs - targets).square().sum((2, 3)).mean(0)
    return -0.5 * squares / sigma**2 - 0.5 * size * log(2 * pi * sigma**2) - q.divergence(prior_precision)


def _train(
    sizes: Sizes,
    inputs: Float[Tensor, "b N I"],
    targets: Float[Tensor, "b N K"],
    delta: Float[Tensor, "b 1"],
    mean: Float[Tensor, "b P"],
    settings: VognSettings,
    seeds: Sequence[int],
    sigma: float,
) -> MeanField:
    """All steps of some members."""
    passes = Passes(sizes, inputs, targets, settings.num_samples, sigma)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    noise = mean.new_empty(len(mean), settings.num_samples, mean.shape[1])
    precision = torch.full_like(mean, settings.initial_precision)
    for step in range(1, settings.steps + 1):
        go_on()
        for own, generator in zip(noise, generators, strict=True):
            own.normal_(generator=generator)
        samples = torch.addcmul(mean[:, None], noise, precision.rsqrt()[:, None])
        sums = passes.sums_of_features if settings.gauss_newton else passes.sums
        gradient, squares = (total / settings.num_samples for total in sums(samples))
        precision = torch.lerp(precision, squares + delta, settings.precision_lr)
        mean = mean - settings.lr * (gradient + delta * mean) / precision
        if step % _LOOK == 0 or step == settings.steps:
            _check_finite(mean, precision, step)
    return MeanField(mean, precision)


def _bytes(sizes: Sizes, num_examples: int, num_samples: int, dtype: torch.dtype) -> int:
    """What a step of one member holds: activations and gradients, and the squares of both."""
    units = sizes.shapes[0][1] + sum(shape[0] for shape in sizes.shapes)
    return 4 * dtype.itemsize * num_samples * (num_examples * units + sizes.num_weights)


def _check(inputs: Tensor, targets: Tensor, delta: Tensor, weights: Tensor, sizes: Sizes) -> None:
    """Refuse what does not fit together, and what are no numbers."""
    count, shapes = len(weights), sizes.shapes
    wanted = {
        "inputs": (inputs, (count, inputs.shape[1], shapes[0][1])),
        "targets": (targets, (count, inputs.shape[1], shapes[-1][0])),
        "prior_precision": (delta, (count,)),
        "weights": (weights, (count, sizes.num_weights)),
    }
    for name, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != shape:
            raise InputError(f"{name}: expected {shape} for {count} members; got {tuple(tensor.shape)}.")
        if not tensor.isfinite().all():
            raise InputError(f"{name}: expected numbers; got NaN or infinite ones. Leave such members out.")
    if not (delta > 0).all():
        raise InputError(f"prior_precision: expected numbers > 0; got a minimum of {delta.min():.3g}.")


def _check_finite(mean: Float[Tensor, "b P"], precision: Float[Tensor, "b P"], step: int) -> None:
    bad = ~(mean.isfinite() & precision.isfinite()).all(1)
    if bad.any():
        raise DivergedError(
            f"VOGN: weights of {int(bad.sum())} of {len(bad)} members are NaN or infinite after {step} steps. "
            "Lower lr or precision_lr, or raise the first precision."
        )
