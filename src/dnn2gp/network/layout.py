"""The layout of the flat weight vector w: which tensor and which layer each part of it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where each weight tensor lies in the flat vector w, and which layer it belongs to."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each weight tensor."""
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def num_weights(self) -> int:
        """P."""
        return sum(self.sizes)

    @property
    def ranges(self) -> dict[str, slice]:
        """Weight name → its range of the flat vector."""
        starts = [0, *accumulate(self.sizes)]
        return {name: slice(a, b) for name, a, b in zip(self.names, starts[:-1], starts[1:], strict=True)}

    @property
    def layers(self) -> dict[str, list[int]]:
        """Layer name → positions in `names`: the weight tensors that one module owns ("" is the network itself)."""
        groups: dict[str, list[int]] = {}
        for position, name in enumerate(self.names):
            groups.setdefault(name.rpartition(".")[0], []).append(position)
        return groups

    def flatten(self, tensors: Mapping[str, Tensor]) -> Float[Tensor, " P"]:
        """The named tensors as one flat vector."""
        return torch.cat([tensors[name].reshape(-1) for name in self.names])

    def unflatten(self, weights: Float[Tensor, " P"]) -> dict[str, Tensor]:
        """Views of the flat vector under the names and shapes of the module."""
        parts = weights.split(self.sizes)
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def expand(self, per_layer: Float[Tensor, " L"]) -> Float[Tensor, " P"]:
        """One value per layer, repeated for each of its weights."""
        per_tensor = torch.empty(len(self.names), dtype=torch.long)
        for position, members in enumerate(self.layers.values()):
            per_tensor[members] = position
        sizes = torch.tensor(self.sizes, device=per_layer.device)
        return per_layer[per_tensor.to(per_layer.device)].repeat_interleave(sizes)

    def sum_by_layer(self, per_weight: Float[Tensor, " P"]) -> Float[Tensor, " L"]:
        """The transpose of `expand`."""
        sums = torch.stack([part.sum() for part in per_weight.split(self.sizes)])
        return torch.stack([sums[members].sum() for members in self.layers.values()])
