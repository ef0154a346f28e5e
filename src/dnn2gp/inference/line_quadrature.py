"""Averages over one latent f ~ N(m, s²) of a likelihood with a convex loss, by a rule that finds the integrand."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dnn2gp.likelihoods import Likelihood
from dnn2gp.support.errors import NotFiniteError

_NODES = 321
_REACH = 9.0
"""The integrand falls by e^{−δ²/2} or more at a distance δ of z from its maximum: 9 is beyond rounding."""


def log_average_line(
    likelihood: Likelihood, mean: Float[Tensor, "N 1"], root: Float[Tensor, "N 1"], targets: Shaped[Tensor, "N ..."]
) -> Float[Tensor, " N"]:
    """log ∫ p(y | m + s z) φ(z) dz by the trapezoidal rule in u, where z = ẑ + w sinh(u).

    ẑ maximises the integrand, and w is its width there, 1/√(1 + s²Λ). A convex loss makes the integrand fall at least
    as fast as φ does, so that the nodes cover it, whether p or φ is the narrower one.
    """
    with torch.no_grad():
        centre, width = _maximum(likelihood, mean, root, targets)
        reach = torch.asinh(_REACH / width)
        u = torch.linspace(-1, 1, _NODES, dtype=mean.dtype, device=mean.device) * reach
        z = centre + width * torch.sinh(u)
        log_weights = torch.log(width * torch.cosh(u) * (2 * reach / (_NODES - 1)))
    f = mean + root * z
    repeated = targets.repeat_interleave(_NODES, 0)
    log_prob = likelihood.log_prob(f.reshape(-1, 1), repeated).unflatten(0, f.shape)
    return torch.logsumexp(log_prob - 0.5 * z.square() + log_weights, dim=-1) - 0.5 * math.log(2 * math.pi)


def _maximum(
    likelihood: Likelihood, mean: Tensor, root: Tensor, targets: Tensor
) -> tuple[Float[Tensor, "N 1"], Float[Tensor, "N 1"]]:
    """(ẑ, w), from the increasing slope s r(m + sz) + z, which changes sign between 0 and −s r(m).

    Newton steps; where one leaves the bracket or is no shorter than half of the step before, the bracket is halved.
    """
    z = torch.zeros_like(mean)
    first = root * likelihood.residual(mean, targets)
    low, high = torch.minimum(-first, z), torch.maximum(-first, z)
    step = high - low
    for _ in range(300):
        f = mean + root * z
        slope = root * likelihood.residual(f, targets) + z
        curvature = 1 + root.square() * likelihood.noise_precision(f, targets).squeeze(-1)
        low, high = torch.where(slope < 0, z, low), torch.where(slope > 0, z, high)
        newton = -slope / curvature
        useful = (z + newton >= low) & (z + newton <= high) & (newton.abs() <= 0.5 * step.abs())
        step = torch.where(useful, newton, 0.5 * (low + high) - z)
        if bool((step.abs() <= 1e-3 * curvature.rsqrt()).all()):
            return z, curvature.rsqrt()
        z = z + step
    raise NotFiniteError(
        "log_prob: the maximum of p(y | f) p(f) was not found. Check that the loss is convex and finite at the targets."
    )
