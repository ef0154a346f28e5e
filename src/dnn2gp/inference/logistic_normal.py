"""Averages over f ~ N(m, v) of the sigmoid σ(f) and of its entropy, to rounding and for every variance.

The logistic distribution is a scale mixture of normal distributions: σ(f) = ∫ Φ(f / 2k) p(k) dk with the density p of
Kolmogorov's distribution (Andrews and Mallows, 1974). Gaussians convolve, so with r² = 4k² + v,

    E σ(f)    = ∫ Φ(m/r) p(k) dk
    E H(σ(f)) = ∫ (4k²/r) φ(m/r) p(k) dk,        H(p) = −p log p − (1 − p) log(1 − p),

the latter because H(σ(f)) = log(1 + e^f) − f σ(f), E log(1 + e^f) = ∫ (m Φ(m/r) + r φ(m/r)) p(k) dk and
E f σ(f) = m E σ(f) + v E σ'(f). Both integrals over k are smooth in log k, where the trapezoidal rule converges
exponentially: 37 nodes are right to rounding, however large v is.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference.quasi_random import for_all_calls

_STEP, _FIRST, _LAST = 0.1, -2.0, 1.6
"""Nodes in log k. Outside, p(k) k is below 1e-17."""


def log_average_sigmoid(mean: Float[Tensor, "*B"], variance: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """log E σ(f) for f ~ N(m, v), in float64, without underflow.

    Far in the tail, where m + v < 0, σ(f) = e^f σ(−f) and E σ(f) = e^{m + v/2} E σ(−g) with g ~ N(m + v, v).
    """
    mean, variance = mean.double(), variance.double()
    tail = mean + variance < 0
    start = torch.where(tail, -(mean + variance), mean)
    k, log_weights = _nodes(mean.device)
    spread = (4 * k.square() + variance.unsqueeze(-1)).sqrt()
    value = torch.logsumexp(log_weights + torch.special.log_ndtr(start.unsqueeze(-1) / spread), dim=-1)
    return value + torch.where(tail, mean + 0.5 * variance, torch.zeros_like(mean))


def average_entropy(mean: Float[Tensor, "*B"], variance: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """E H(σ(f)) for f ~ N(m, v), in nats and float64: a sum of positive terms, in which nothing cancels."""
    mean, variance = mean.double(), variance.double()
    k, log_weights = _nodes(mean.device)
    square = 4 * k.square() + variance.unsqueeze(-1)
    density = torch.exp(-0.5 * mean.square().unsqueeze(-1) / square) / (2 * math.pi * square).sqrt()
    return (log_weights.exp() * 4 * k.square() * density).sum(-1)


def _nodes(device: torch.device) -> tuple[Float[Tensor, " J"], Float[Tensor, " J"]]:
    """k, and the logs of p(k) dk."""
    k, log_weights = _nodes_on_cpu()
    return k.to(device), log_weights.to(device)


@cache
def _nodes_on_cpu() -> tuple[Float[Tensor, " J"], Float[Tensor, " J"]]:
    """Two series for p, fast for large and for small k: 8k Σ (−1)^{j+1} j² e^{−2j²k²}, and its theta transform."""
    with for_all_calls():
        count = round((_LAST - _FIRST) / _STEP) + 1
        k = torch.linspace(_FIRST, _LAST, count, dtype=torch.float64).exp()
        j = torch.arange(1, 20, dtype=torch.float64).unsqueeze(1)
        large = 8 * k * (-((-1.0) ** j) * j.square() * torch.exp(-2 * (j * k).square())).sum(0)
        c = (math.pi * (2 * j - 1)).square() / 8
        small = math.sqrt(2 * math.pi) * ((2 * c / k**4 - 1 / k**2) * torch.exp(-c / k**2)).sum(0)
        density = torch.where(k < 0.8, small, large)
        return k, (density * k * _STEP).log()
