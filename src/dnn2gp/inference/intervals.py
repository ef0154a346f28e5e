"""Central intervals of y: quantiles of the distribution of y averaged over f."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference.quasi_random import normal_points, principal_root
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood, PoissonLikelihood

_NODES = 401
_ROWS = 2**12
_DRAWS = 4096
"""How many f, with one y each, stand for the distribution of y if its distribution function is not known."""


def central_interval(
    likelihood: Likelihood, level: float, mean: Float[Tensor, "N K"], covariance: Float[Tensor, "N K K"]
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """The quantiles (1 ∓ level)/2 of each output, in float64."""
    tails = 0.5 * (1 - level), 0.5 * (1 + level)
    mean, covariance = mean.double(), covariance.double()
    variance = covariance.diagonal(dim1=1, dim2=2)
    if isinstance(likelihood, GaussianLikelihood):
        std = (variance + likelihood.covariance(mean).diagonal(dim1=1, dim2=2)).sqrt()
        reach = std * torch.special.ndtri(std.new_tensor(tails[1]))
        return mean - reach, mean + reach
    if isinstance(likelihood, PoissonLikelihood):
        parts = list(zip(mean.detach().split(_ROWS), variance.detach().clamp(min=0).sqrt().split(_ROWS), strict=True))
        lower, upper = (torch.cat([poisson_quantile(tail, *part) for part in parts]) for tail in tails)
        return lower, upper
    return sampled_quantiles(likelihood, tails, mean.detach(), covariance.detach())


def poisson_quantile(probability: float, mean: Float[Tensor, "*B"], std: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """The smallest count n with P(y ≤ n) ≥ q, where y ~ Poisson(e^f) and f ~ N(m, s²), by bisection."""
    low, high = torch.full_like(mean, -1.0), torch.ones_like(mean)  # P(y ≤ low) < q ≤ P(y ≤ high)
    while bool((short := poisson_cdf(high, mean, std) < probability).any()):
        low, high = torch.where(short, high, low), torch.where(short, 2 * high, high)
    while True:
        middle = torch.floor(0.5 * (low + high))
        inside = (middle > low) & (middle < high)
        if not inside.any():
            return high
        enough = poisson_cdf(middle, mean, std) >= probability
        low, high = torch.where(inside & ~enough, middle, low), torch.where(inside & enough, middle, high)


def poisson_cdf(count: Float[Tensor, "*B"], mean: Float[Tensor, "*B"], std: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """P(y ≤ n) for y ~ Poisson(e^f), f ~ N(m, s²), by the trapezoidal rule over the narrower of two distributions.

    P(y ≤ n | f) = P(G > e^f) with G ~ Gamma(n + 1), so P(y ≤ n) = P(f < log G): an average of P(G > e^f) over f, or of
    Φ((g − m)/s) over g = log G, whose standard deviation is about 1/√(n + 1). Over the narrower one, the other function
    is smooth.
    """
    shape = count + 1
    unit = torch.linspace(-1, 1, _NODES, dtype=torch.float64, device=mean.device)
    z = 8.5 * unit
    over_f = _mean(
        lambda z: torch.special.gammaincc(shape.unsqueeze(-1), torch.exp(mean.unsqueeze(-1) + std.unsqueeze(-1) * z)),
        z.expand(*mean.shape, -1),
        -0.5 * z.square(),
    )
    below, above = 8.5 / shape.sqrt() + 37 / shape, 8.5 / shape.sqrt() + 3 / shape
    t = 0.5 * ((above - below).unsqueeze(-1) + (above + below).unsqueeze(-1) * unit)  # g − log(n + 1)
    over_g = _mean(
        lambda t: torch.special.ndtr((t + (shape.log() - mean).unsqueeze(-1)) / std.unsqueeze(-1)),
        t,
        shape.unsqueeze(-1) * (t - torch.expm1(t)),
    )
    return torch.where(std * shape.sqrt() < 4, over_f, over_g)


def _mean(function: Callable[[Tensor], Tensor], nodes: Tensor, log_density: Tensor) -> Tensor:
    """Σ w_j function(node_j), with weights in proportion to the density."""
    return (function(nodes) * log_density.softmax(-1)).sum(-1)


def sampled_quantiles(
    likelihood: Likelihood,
    probabilities: tuple[float, float],
    mean: Float[Tensor, "N K"],
    covariance: Float[Tensor, "N K K"],
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """Quantiles of draws of y, one for each of 4096 Sobol points f, from a generator with a fixed seed.

    The same for every call. A quantile of probability q comes with that of q ± √(q(1 − q)/4096).
    """
    root = principal_root(covariance.double())
    points = normal_points(_DRAWS, mean.shape[1]).to(mean.device)
    levels = torch.tensor(probabilities, dtype=torch.float64, device=mean.device)
    rows = []
    for own_mean, own_root in zip(mean.double(), root, strict=True):
        generator = torch.Generator(device=mean.device).manual_seed(0)  # the same draws for every input
        draws = likelihood.sample(own_mean + points @ own_root.mT, 1, generator)[0]
        rows.append(torch.quantile(draws.double().reshape(_DRAWS, -1), levels, dim=0))
    lower, upper = torch.stack(rows, 1) if rows else mean.new_empty(2, *mean.shape)
    return lower, upper
