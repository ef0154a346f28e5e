"""The geometry of a convolution, and the patches of its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """Kernel size, stride, padding (before, after) and dilation for each axis, and the groups of channels."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    def patches(
        self, x: Float[Tensor, "B C *space"], space: Sequence[int], *, bias: bool = False
    ) -> Float[Tensor, "B g i L"]:
        """The patches of x that meet the kernel at each of the L output positions, i = C/g · kernel entries.

        With a bias they have one more entry, 1.
        """
        view, sizes = self._view(x, space), (prod(self.kernel), prod(space))
        groups, size = self.groups, x.shape[1] // self.groups * sizes[0]
        if not bias or x.requires_grad:
            flat = view.reshape(len(x), groups, size, sizes[1])
            return flat if not bias else torch.cat([flat, flat.new_ones(len(x), groups, 1, sizes[1])], 2)
        result = x.new_empty(len(x), groups, size + 1, sizes[1])
        result[:, :, -1] = 1
        result[:, :, :-1].view(view.shape).copy_(view)
        return result

    def _view(self, x: Float[Tensor, "B C *space"], space: Sequence[int]) -> Tensor:
        """The padded x seen as B × C × kernel × space, without a copy."""
        flat = [size for pair in reversed(self.padding) for size in pair]
        x = (F.pad(x, flat) if any(flat) else x).contiguous()
        strides = x.stride()
        steps = strides[2:]
        return x.as_strided(
            (*x.shape[:2], *self.kernel, *space),
            (
                *strides[:2],
                *(d * s for d, s in zip(self.dilation, steps, strict=True)),
                *(k * s for k, s in zip(self.stride, steps, strict=True)),
            ),
            x.storage_offset(),
        )
