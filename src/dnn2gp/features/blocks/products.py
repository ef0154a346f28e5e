"""Matrix products A Bᵀ by the faster of the libraries that torch brings along.

torch computes float32 products with MKL (or another BLAS), which does not use the widest instructions of AMD's
processors: there, oneDNN is twice as fast. The two round differently, so the choice depends on the processor alone, not
on measurements.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

# The fewest multiplications of a product, and the smallest inner dimension, that are worth a call of oneDNN.
_LARGE, _DEEP = 3 << 19, 32
# The most entries of a product that is added to a matrix: it stays in the cache, and plans need not count it.
_PANEL = 1 << 18


def add_product(
    total: Float[Tensor, "m n"], left: Float[Tensor, "m k"], right: Float[Tensor, "n k"], scale: float = 1.0
) -> None:
    """total += scale · A Bᵀ."""
    if not _use_onednn(left, right):
        total.addmm_(left, right.T, alpha=scale)
        return
    columns = max(1, _PANEL // len(left))
    for place, few in zip(total.split(columns, 1), right.split(columns), strict=True):
        place.add_(_onednn(left, few), alpha=scale)


def each_product(
    left: Float[Tensor, "n m k"], right: Float[Tensor, "n q k"], out: Float[Tensor, "n m q"] | None = None
) -> Float[Tensor, "n m q"]:
    """A Bᵀ for each of n pairs."""
    if not len(left) or not _use_onednn(left[0], right[0]):
        return torch.bmm(left, right.mT, out=out)
    result = left.new_empty(len(left), left.shape[1], right.shape[1]) if out is None else out
    for place, a, b in zip(result, left, right, strict=True):
        place.copy_(_onednn(a, b))
    return result


def _use_onednn(left: Float[Tensor, "m k"], right: Float[Tensor, "n k"]) -> bool:
    (m, k), n = left.shape, len(right)
    if m * n * k < _LARGE or k < _DEEP or left.dtype != torch.float32 or left.device.type != "cpu":
        return False
    if left.requires_grad or right.requires_grad or not torch.backends.mkldnn.is_available():
        return False
    return onednn_is_faster()


@cache
def onednn_is_faster() -> bool:
    """Whether float32 products are better left to oneDNN: torch uses MKL, on a processor of AMD with AVX-512."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return torch.backends.mkl.is_available() and wide and "AuthenticAMD" in _processor() and _onednn_works()


def _processor() -> str:
    """The name of the processor, with its vendor."""
    known = Path("/proc/cpuinfo")
    return known.read_text(errors="replace")[:4096] if known.exists() else platform.processor()


def _onednn_works() -> bool:
    """Whether torch has this product, which is no part of its public interface."""
    left, right = torch.full((4, 32), 0.5), torch.full((3, 32), 0.25)
    try:
        return torch.equal(_onednn(left, right), left @ right.T)
    except (RuntimeError, AttributeError, TypeError):
        return False


def _onednn(left: Float[Tensor, "m k"], right: Float[Tensor, "n k"]) -> Float[Tensor, "m n"]:
    return torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
