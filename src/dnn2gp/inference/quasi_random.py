"""Deterministic points for averages over f ~ N(m, C) in several dimensions: Sobol points along the principal axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.quasirandom import SobolEngine

from dnn2gp.support.errors import NotPositiveDefiniteError

CHUNK = 2**18
"""How many values of f are held at once: few enough to stay in a cache."""


@contextmanager
def for_all_calls() -> Iterator[None]:
    """Make tensors that later calls can use, whatever the default device and inference mode of the first one are."""
    with torch.device("cpu"), torch.inference_mode(False):
        yield


@lru_cache(maxsize=8)
def normal_points(count: int, dimensions: int) -> Float[Tensor, "S D"]:
    """Scrambled Sobol points as normal numbers z, always the same ones, in float64."""
    with for_all_calls():
        uniform = SobolEngine(dimensions, scramble=True, seed=0).draw(count, dtype=torch.float64)
        return torch.special.ndtri(uniform.clamp(2**-31, 1 - 2**-31))


def principal_root(
    covariance: Float[Tensor, "N D D"], size: Float[Tensor, " N"] | None = None
) -> Float[Tensor, "N D D"]:
    """R = U diag(√λ) with C = R Rᵀ and λ descending, so that the first and best coordinates of a point matter most.

    Negative eigenvalues within the rounding of numbers as large as `size` (by default, as C) count as zero; others are
    an error. Gradients are those of the continuous root with dR = (I − ½P) dC R⁻ᵀ, where P projects on the range of C.
    They are finite for repeated and for zero eigenvalues, where those of U are not.
    """
    size = covariance.detach().abs().amax((-2, -1)) if size is None else size
    root = _PrincipalRoot.apply(covariance, size)
    assert isinstance(root, Tensor)
    return root


class _PrincipalRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, covariance: Tensor, size: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values.flip(-1), vectors.flip(-1)
        rounding = torch.finfo(covariance.dtype).eps * size.unsqueeze(-1)
        _check_values(values, 1e3 * rounding)
        largest = vectors.abs().argmax(-2, keepdim=True)
        vectors = vectors * vectors.gather(-2, largest).sign()  # eigenvectors have no sign of their own
        ctx.save_for_backward(values, vectors, rounding)
        return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        values, vectors, rounding = ctx.saved_tensors
        used = values > 10 * rounding
        inverse = torch.where(used, values, 1).rsqrt() * used
        along = vectors * used.unsqueeze(-2)
        whole = grads[0] @ (vectors * inverse.unsqueeze(-2)).mT
        half = whole - 0.5 * along @ (along.mT @ whole)
        return 0.5 * (half + half.mT), None


def _check_values(values: Float[Tensor, "N D"], floor: Float[Tensor, "N 1"]) -> None:
    if bool((values < -floor).any()):
        raise NotPositiveDefiniteError(
            f"A predictive covariance has eigenvalue {values.min().item():.3g} (largest {values.max().item():.3g}). "
            "Use float64, or raise the prior precision δ."
        )


def average_over_points(
    value: Callable[[Float[Tensor, "M K S"], slice], tuple[Tensor, ...]],
    mean: Float[Tensor, "N K"],
    root: Float[Tensor, "N K D"],
    count: int,
) -> tuple[Tensor, ...]:
    """What `value` returns for f = m + R z at all points of a chunk of inputs, for all inputs."""
    points = normal_points(count, root.shape[-1]).to(root.device)
    parts = [value(mean[part].unsqueeze(2) + root[part] @ points.mT, part) for part in _chunks(mean, count)]
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def _chunks(mean: Float[Tensor, "N K"], count: int) -> Iterator[slice]:
    rows = max(1, CHUNK // (count * mean.shape[1]))
    return (slice(start, start + rows) for start in range(0, max(1, len(mean)), rows))
