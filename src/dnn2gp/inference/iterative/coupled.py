"""Covariances from coupled samples: v is unknown, v + d = T is known, and there are samples of both v and d.

θ ~ N(0, A⁻¹) and θ̂ ~ N(0, Â⁻¹) are drawn so that η = θ̂ − θ is independent of θ (see `samples.py`). For the rows J of
an input, Jθ ~ N(0, V) and Jη ~ N(0, D) with V + D = J Â⁻¹ Jᵀ = T, which is known exactly. The V with the largest
likelihood, given both samples, solves

    V⁻¹ (Ŝ_V − V) V⁻¹  =  D⁻¹ (Ŝ_D − D) D⁻¹

with Ŝ the empirical covariances. It lies between 0 and T, and in the basis in which T = I and V, D are diagonal the
variance of its entry (i, j) is  v d / (v + d) / S  with v = vᵢvⱼ and d = dᵢdⱼ, twice that on the diagonal: never more
than that of Ŝ_V alone, and little where D is small.

With S < 2K samples, Ŝ_V and Ŝ_D say too little about K × K matrices. Then 2K − S pseudo-samples are added, for which V
and D are the same shares of T in all directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

_STEPS = 60
# The search ends where the next step would change no entry of V, in units of T, by more than this share of its error,
_TOLERANCE = 1e-3
# or than this share of V itself.
_FINE = 1e-9
# The search starts at least this far inside the interval (0, T).
_START = 1e-6
# A step stays this share of the way inside the interval (0, T).
_INSIDE = 0.9


@final
@dataclass(frozen=True, eq=False)
class Estimate:
    """V for each input, and the relative standard deviation of its trace."""

    covariance: Float[Tensor, "n K K"]
    error: Float[Tensor, " n"]


def estimate(
    total: Float[Tensor, "n K K"], samples: Float[Tensor, "n K S"], differences: Float[Tensor, "n K S"]
) -> Estimate:
    """V from T, Jθ and Jη, in float64; differentiable with respect to all three."""
    count = samples.shape[2]
    own, other = _completed(total, samples @ samples.mT / count, differences @ differences.mT / count, count)
    with torch.no_grad():
        root, inverse, none = _roots(total.detach())
        first, second = (inverse @ each.detach() @ inverse.mT + torch.diag_embed(none / 2) for each in (own, other))
        basis, v = _maximum(first, second, count)
        turn, back = basis.mT @ inverse, root @ basis
        weight, variance = _weights(v)
    mixed = weight * (turn @ own @ turn.mT) + (1 - weight) * (turn @ (total - other) @ turn.mT)
    covariance = back @ mixed @ back.mT
    spread = (back.mT @ back).square()
    unknown = _missing(total, count) / (count + _missing(total, count))
    error = (2 * (1 + unknown) * (spread * variance).sum((1, 2)) / count).sqrt()
    trace = covariance.diagonal(dim1=1, dim2=2).sum(1).detach()
    return Estimate(_symmetric(covariance), error / trace)


def _completed(
    total: Float[Tensor, "n K K"], own: Float[Tensor, "n K K"], other: Float[Tensor, "n K K"], count: int
) -> tuple[Float[Tensor, "n K K"], Float[Tensor, "n K K"]]:
    """Ŝ_V and Ŝ_D; with fewer than 2K samples, mixed with t T and (1 − t) T, where t is the share of tr V in tr T."""
    missing = _missing(total, count)
    if not missing:
        return own, other
    first, second = (each.diagonal(dim1=1, dim2=2).sum(1)[:, None, None] for each in (own, other))
    share, weight = first / (first + second).clamp(min=torch.finfo(total.dtype).tiny), missing / (count + missing)
    return torch.lerp(own, share * total, weight), torch.lerp(other, (1 - share) * total, weight)


def _missing(total: Float[Tensor, "n K K"], count: int) -> int:
    """2K − S, or 0."""
    return max(0, 2 * total.shape[1] - count)


def _weights(v: Float[Tensor, "n K"]) -> tuple[Float[Tensor, "n K K"], Float[Tensor, "n K K"]]:
    """The share of Ŝ_V in each entry, the rest being that of T − Ŝ_D, and v d / (v + d)."""
    d = 1 - v
    left, right = v[:, :, None] * v[:, None], d[:, :, None] * d[:, None]
    return right / (left + right), left * right / (left + right)


def _maximum(
    own: Float[Tensor, "n K K"], other: Float[Tensor, "n K K"], count: int
) -> tuple[Float[Tensor, "n K K"], Float[Tensor, "n K"]]:
    """The basis in which V is diagonal, and V there, where T = I: Fisher scoring, with steps that stay in (0, I).

    A step that decreases the likelihood is tried again with half the size.
    """
    eye = torch.eye(own.shape[1], dtype=own.dtype, device=own.device)
    v, basis = torch.linalg.eigh(_symmetric(torch.linalg.solve(own + other, own)))
    v = v.clamp(_START, 1 - _START)
    loss, share = _loss(v, basis, own, other), torch.ones_like(v[:, 0])
    for _ in range(_STEPS):
        weight, variance = _weights(v)
        change = weight * (basis.mT @ own @ basis) + (1 - weight) * (basis.mT @ (eye - other) @ basis)
        change = change - torch.diag_embed(v)
        enough = torch.maximum(_TOLERANCE**2 * variance / count, _FINE**2 * v[:, :, None] * v[:, None])
        done = (change.square() <= enough).flatten(1).all(1)
        if bool(done.all()):
            break
        size = torch.where(done, 0.0, share * _largest_step(v, change))
        tried, inner = torch.linalg.eigh(torch.diag_embed(v) + size[:, None, None] * change)
        turned = basis @ inner
        new = _loss(tried, turned, own, other)
        better = new <= loss + _FINE * loss.abs()
        share = torch.where(better, (2 * share).clamp(max=1), share / 2)
        v, loss = torch.where(better[:, None], tried, v), torch.where(better, new, loss)
        basis = torch.where(better[:, None, None], turned, basis)
    return basis, v


def _loss(
    v: Float[Tensor, "n K"], basis: Float[Tensor, "n K K"], own: Float[Tensor, "n K K"], other: Float[Tensor, "n K K"]
) -> Float[Tensor, " n"]:
    """log |V| + tr V⁻¹Ŝ_V + log |D| + tr D⁻¹Ŝ_D, where V is diagonal in the basis and D = I − V."""
    parts = ((v, own), (1 - v, other))
    return sum(
        (each.log() + (basis.mT @ found @ basis).diagonal(dim1=1, dim2=2) / each).sum(1) for each, found in parts
    )  # pyright: ignore[reportReturnType]


def _symmetric(matrix: Float[Tensor, "n K K"]) -> Float[Tensor, "n K K"]:
    return (matrix + matrix.mT) / 2


def _largest_step(v: Float[Tensor, "n K"], change: Float[Tensor, "n K K"]) -> Float[Tensor, " n"]:
    """The largest multiple ≤ 1 of the change with which V stays well inside (0, I)."""
    low = torch.linalg.eigvalsh(change / (v.sqrt()[:, :, None] * v.sqrt()[:, None]))[:, 0]
    d = 1 - v
    high = torch.linalg.eigvalsh(change / (d.sqrt()[:, :, None] * d.sqrt()[:, None]))[:, -1]
    steepest = torch.maximum(-low, high)
    return torch.where(steepest > _INSIDE, _INSIDE / steepest.clamp(min=_INSIDE), 1.0)


def _roots(
    total: Float[Tensor, "n K K"],
) -> tuple[Float[Tensor, "n K K"], Float[Tensor, "n K K"], Float[Tensor, "n K"]]:
    """R and its inverse with R Rᵀ = T, both zero in directions in which T is; and which directions these are."""
    values, vectors = torch.linalg.eigh(total)
    rounding = total.shape[1] * torch.finfo(total.dtype).eps * values[:, -1:].clamp(min=0)
    kept = values > rounding
    lengths = torch.where(kept, values, 1.0).sqrt()
    root = vectors * torch.where(kept, lengths, 0.0)[:, None]
    inverse = (vectors * torch.where(kept, 1 / lengths, 0.0)[:, None]).mT
    return root, inverse, (~kept).to(total.dtype)
