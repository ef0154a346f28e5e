"""The rows of a convolution's weights, Σ_l g_l patch_lᵀ of each example: by a grouped convolution, or from its patches.

With the examples as groups, the gradient of the weights of one convolution is that of each example, and no patches are
copied. oneDNN does this in float32. Which way is faster depends on the sizes of the layer: patches pay off if several
cotangents share them and they stay in the cache. The rule below takes 1.04 times as long as the best choice on average,
and at most 1.8 times, over 268 layers of 1 to 64 channels. It depends on sizes alone, not on measurements, so that
results do not differ from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn import grad

from dnn2gp.features.blocks.products import each_product
from dnn2gp.features.engines.layerwise.rules.geometry import Geometry
from dnn2gp.support.memory import even_chunks

# Gradients that are kept for one product with the patches, in multiples of the patches themselves.
_GRADIENTS_KEPT = 4
# The largest number of entries in a tensor of the examples that are treated at once, and the fewest of them.
_AT_ONCE, _FEW = 1 << 19, 2
# The fewest multiplications of an example that are worth a grouped convolution.
_WORTH_GROUPS = 1 << 17
# Several cotangents do without patches if those of an example have more entries than this, and there are so many
# channels.
_PATCHES_CACHED, _WIDE = 150_000, 32

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
        """How to form rows for inputs such as x; only oneDNN has fast convolutions with many groups."""
        size, channels, positions = self.inputs[0] * prod(self.geometry.kernel), self.outputs[0], prod(self.outputs[1:])
        together = max(1, min(self.num_rows, _GRADIENTS_KEPT * size // channels))
        fast = x.dtype == torch.float32 and x.device.type == "cpu" and torch.backends.mkldnn.is_available()
        worth_it = prod(self.geometry.kernel) > 1 and self.num_rows * channels * positions * size >= _WORTH_GROUPS
        large = size * positions > _PATCHES_CACHED and channels >= _WIDE
        return RowWay(True, 1) if fast and worth_it and (together == 1 or large) else RowWay(False, together)
