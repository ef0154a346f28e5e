"""Oracles for averages over f ~ N(m, C): adaptive quadrature for one logit, a fine grid for three, samples for more."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from scipy.integrate import quad
from torch import Tensor


def integral(function: Callable[[float], float], mean: float, variance: float, *breaks: float) -> float:
    """E function(f) for f ~ N(mean, variance), with breaks where the function changes quickly."""
    if variance == 0:
        return function(mean)
    std = math.sqrt(variance)

    def density(f: float) -> float:
        return function(f) * math.exp(-0.5 * ((f - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))

    ends = sorted({mean - 12 * std, mean, mean + 12 * std, *(b for b in breaks if abs(b - mean) < 12 * std)})
    pieces = [quad(density, a, b, limit=500, epsabs=0, epsrel=1e-13)[0] for a, b in pairwise(ends)]
    return math.fsum(pieces)


def over_three_logits(mean: Tensor, covariance: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    """E value(f) for a value that depends on differences of three logits, by the trapezoidal rule on a 601 × 601 grid.

    Differentiable; the covariance of the differences must be invertible.
    """
    apart = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
    lower = torch.linalg.cholesky(apart @ covariance @ apart.T)
    axis = torch.linspace(-9, 9, 601, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    weights = (-0.5 * grid.square().sum(1)).softmax(0)
    two = apart @ mean + grid @ lower.T
    logits = torch.cat([two, torch.zeros_like(two[:, :1])], 1)
    return (weights.view(-1, *[1] * (value(logits).ndim - 1)) * value(logits)).sum(0)


def by_samples(
    mean: Tensor, covariance: Tensor, value: Callable[[Tensor], Tensor], count: int = 10**6
) -> tuple[Tensor, Tensor]:
    """E value(f) at one input from many samples, and the standard error of each entry."""
    values, vectors = np.linalg.eigh(covariance.numpy())
    root = vectors * np.sqrt(np.clip(values, 0, None))
    draws = np.random.default_rng(0).normal(size=(count, len(mean)))
    found = value(torch.from_numpy(mean.numpy() + draws @ root.T))
    return found.mean(0), found.std(0) / math.sqrt(count)
