"""The linearised network by explicit matrices in float64: its mode, its Laplace evidence, and leave-one-out refits."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def total(theta: Tensor, J: Tensor, f: Tensor, w: Tensor, y: Tensor, loss: Loss, delta: Tensor) -> Tensor:
    """Σᵢ ℓ(yᵢ, fᵢ + Jᵢ(θ − w)) + ½ θᵀ diag(δ) θ."""
    outputs = f + J @ (theta - w)
    return torch.vmap(loss)(outputs, y).sum() + 0.5 * (delta * theta.square()).sum()


def mode(J: Tensor, f: Tensor, w: Tensor, y: Tensor, loss: Loss, delta: Tensor, start: Tensor | None = None) -> Tensor:
    """The minimum of `total`, by Newton steps with explicit Hessians, halved while the loss grows."""
    theta = (w if start is None else start).clone()

    def value(at: Tensor) -> Tensor:
        return total(at, J, f, w, y, loss, delta)

    for _ in range(200):
        gradient = torch.func.grad(value)(theta)
        if gradient.norm() < 1e-11 * (1 + theta.norm()):
            break
        step = torch.linalg.solve(torch.func.hessian(value)(theta), gradient)
        size = 1.0
        while value(theta - size * step) > value(theta) + 1e-12 and size > 1e-9:
            size /= 2
        theta = theta - size * step
    assert torch.func.grad(value)(theta).norm() < 1e-8 * (1 + theta.norm())
    return theta


def evidence(J: Tensor, f: Tensor, w: Tensor, y: Tensor, loss: Loss, log_prob: Loss, delta: Tensor) -> float:
    """log p(D|θ) + log p(θ) + P/2 log 2π − ½ log |Hessian| at the mode θ."""
    theta = mode(J, f, w, y, loss, delta)
    outputs = f + J @ (theta - w)
    hessian = torch.func.hessian(lambda at: total(at, J, f, w, y, loss, delta))(theta)
    prior = 0.5 * (delta.log().sum() - (delta * theta.square()).sum()) - 0.5 * len(w) * math.log(2 * math.pi)
    half = 0.5 * len(w) * math.log(2 * math.pi) - 0.5 * torch.linalg.slogdet(hessian).logabsdet
    return (log_prob(outputs, y).sum() + prior + half).item()


def without(J: Tensor, f: Tensor, w: Tensor, y: Tensor, loss: Loss, delta: Tensor, out: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance of f at example `out`, of the linearised network fitted to all the others."""
    keep = [i for i in range(len(f)) if i != out]
    own = J[keep], f[keep], w, y[keep], loss, delta
    theta = mode(*own)
    covariance = torch.linalg.inv(torch.func.hessian(lambda at: total(at, *own))(theta))
    return f[out] + J[out] @ (theta - w), J[out] @ covariance @ J[out].T
