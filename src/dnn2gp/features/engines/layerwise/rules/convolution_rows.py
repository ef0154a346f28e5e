"""The rows of a convolution's weights, Σ_l g_l patch_lᵀ of each example: by a grouped convolution, or from its patches.

With the examples as groups, the gradient of the weights of one convolution is that of each example, and no patches are
copied. oneDNN does this in float32; which way is faster depends on the sizes of the layer and on the machine, and is
measured once for each of them, on a few examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn import grad
from torch.utils._python_dispatch import _disable_current_modes

from dnn2gp.features.blocks.products import each_product, seconds
from dnn2gp.features.engines.layerwise.rules.geometry import Geometry
from dnn2gp.support.memory import even_chunks

# Gradients that are kept for one product with the patches, in multiples of the patches themselves.
_GRADIENTS_KEPT = 4
# The largest number of entries in a tensor of the examples that are treated at once, and the fewest of them.
_AT_ONCE, _FEW = 1 << 19, 2
# The multiplications of an example from which on the ways are compared, and the examples × cotangents for that.
_WORTH_A_TRIAL, _TRIED, _TIMES = 1 << 17, 8, 2
# How much faster a way must be than those before it: the first one needs the least memory, and no copies of gradients
# that are too many for the cache; and rounding should not differ from run to run without need.
_CLEARLY = 1.5

_WEIGHT_GRADIENTS: dict[int, Callable[..., Tensor]] = {
    1: grad.conv1d_weight,
    2: grad.conv2d_weight,
    3: grad.conv3d_weight,
}


@dataclass(frozen=True)
class RowWay:
    """A way to compute the rows: `at_once` cotangents together, by a grouped convolution or from patches."""

    grouped: bool
    at_once: int

    def rows(
        self,
        geometry: Geometry,
        x: Float[Tensor, "B C *in"],
        G: Float[Tensor, "B R O *space"],
        *,
        bias: bool = False,
    ) -> Float[Tensor, "B R O i"]:
        """Σ_l g_l patch_lᵀ, a few examples at a time, so that what they need stays in the cache; with a bias, Σ_l g_l
        is the last column."""
        (B, R, O), i = G.shape[:3], x.shape[1] * prod(geometry.kernel)
        result = G.new_empty(B, R, O, i + bias)
        work = _grouped if self.grouped else _from_patches
        most = max(_FEW, _AT_ONCE // max(x[0].numel(), G[0].numel(), R * O * i))
        for part in even_chunks(B, most):
            work(geometry, x[part], G[part], result[part, :, :, :i])
        if bias:
            torch.sum(G.flatten(3), 3, out=result[..., i])
        return result


def _grouped(
    geometry: Geometry, x: Float[Tensor, "b C *in"], G: Float[Tensor, "b R O *space"], out: Float[Tensor, "b R O i"]
) -> None:
    """The gradient of the weights of a convolution with one group per example."""
    b, R, O = G.shape[:3]
    padding = tuple(before for before, _ in geometry.padding)
    if any(before != after for before, after in geometry.padding):
        x = F.pad(x, [size for pair in reversed(geometry.padding) for size in pair])
        padding = (0,) * len(padding)
    found = _WEIGHT_GRADIENTS[len(padding)](
        x.reshape(1, -1, *x.shape[2:]),
        (b * R * O, x.shape[1], *geometry.kernel),
        G.reshape(1, -1, *G.shape[3:]),
        geometry.stride,
        padding,
        geometry.dilation,
        b,
    )
    out.copy_(found.view(out.shape))


def _from_patches(
    geometry: Geometry, x: Float[Tensor, "b C *in"], G: Float[Tensor, "b R O *space"], out: Float[Tensor, "b R O i"]
) -> None:
    """Products with the patches, for all cotangents of an example at once."""
    patches = geometry.patches(x, G.shape[3:]).squeeze(1)
    out.copy_(each_product(G.flatten(3).flatten(1, 2), patches).view(out.shape))


@dataclass(frozen=True)
class RowSizes:
    """What decides which way is the fastest: the shapes of one example, and the number of cotangents."""

    geometry: Geometry
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    num_rows: int

    def way(self, x: Tensor) -> RowWay:
        """The fastest way for inputs such as x; only oneDNN has fast convolutions with many groups."""
        size = self.inputs[0] * prod(self.geometry.kernel)
        together = max(1, min(self.num_rows, _GRADIENTS_KEPT * size // self.outputs[0]))
        usual = RowWay(False, together)
        fast = x.dtype == torch.float32 and x.device.type == "cpu" and torch.backends.mkldnn.is_available()
        if not fast or self.num_rows * prod(self.outputs) * size < _WORTH_A_TRIAL:
            return usual
        return _fastest(self, usual, torch.get_num_threads())


@cache
def _fastest(sizes: RowSizes, usual: RowWay, _num_threads: int) -> RowWay:
    """The way with the shortest time per example and cotangent; one cotangent at a time needs the least memory."""
    best, least = usual, float("inf")
    with torch.no_grad(), _disable_current_modes():
        for way in dict.fromkeys((RowWay(True, 1), RowWay(True, usual.at_once), usual)):
            count = max(_FEW, _TRIED // way.at_once)
            x = torch.full((count, *sizes.inputs), 0.5)
            gradients = [torch.full((count, *sizes.outputs), 0.5) for _ in range(way.at_once)]
            each = _shortest(way, sizes.geometry, x, gradients) / (count * way.at_once)
            if each * _CLEARLY < least:
                best, least = way, each
    return best


def _shortest(
    way: RowWay, geometry: Geometry, x: Float[Tensor, "b C *in"], gradients: Sequence[Float[Tensor, "b O *space"]]
) -> float:
    """The shortest time of a few, after one that makes what is made only once; several gradients are copied."""

    def work() -> Tensor:
        together = gradients[0].unsqueeze(1) if len(gradients) == 1 else torch.stack(list(gradients), 1)
        return way.rows(geometry, x, together)

    work()
    return min(seconds(work) for _ in range(_TIMES))
