"""Matrix products A Bᵀ by the faster of the libraries that torch brings along.

torch computes float32 products with MKL (or another BLAS). On some processors, oneDNN is twice as fast: MKL does not
use the widest instructions of every vendor. Which one is faster is measured once per process and number of threads,
when the first product that is large enough is due; this takes a few milliseconds. The two round differently, so oneDNN
must win clearly: if both are about as fast, the choice and the last digits of results would change from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

# The fewest multiplications of a product, and the smallest inner dimension, that are worth a call of oneDNN.
_LARGE, _DEEP = 3 << 19, 32
# The most entries of a product that is added to a matrix: it stays in the cache, and plans need not count it.
_PANEL = 1 << 18
# How much faster oneDNN must be.
_CLEARLY = 1.25
# The sides and the inner dimension of the product that is measured, and how often.
_TRIED, _TIMES = (192, 192, 1024), 3


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
    return onednn_is_faster(torch.get_num_threads())


@cache
def onednn_is_faster(_num_threads: int) -> bool:
    """Whether oneDNN multiplies matrices clearly faster than `torch.mm`; measured anew for each number of threads."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    m, n, k = _TRIED
    left, right = torch.full((m, k), 0.5), torch.full((n, k), 0.25)
    ways = (lambda: left @ right.T), (lambda: _onednn(left, right))
    try:
        if not torch.equal(ways[0](), ways[1]()):
            return False
    except RuntimeError:
        return False
    times = [[seconds(way) for way in ways] for _ in range(_TIMES)]
    blas, onednn = (min(own) for own in zip(*times, strict=True))
    return onednn * _CLEARLY < blas


def seconds(work: Callable[[], object]) -> float:
    """How long the work takes."""
    start = perf_counter()
    work()
    return perf_counter() - start


def _onednn(left: Float[Tensor, "m k"], right: Float[Tensor, "n k"]) -> Float[Tensor, "m n"]:
    return torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
