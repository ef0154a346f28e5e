"""Embedding tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.features.blocks import Block, Lookup
from dnn2gp.features.engines.layerwise.places import BatchAxis, FlatWeights
from dnn2gp.features.engines.layerwise.rules.base import Use, argument, rule


@dataclass(frozen=True, eq=False)
class LookupUse(Use):
    """z_l = E[t_l]: ∂f/∂E[v] = Σ_l [t_l = v] g_l, except for the padding entry, which torch does not train."""

    index: Int[Tensor, "*B"]
    num_entries: int
    padding: int | None

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """All axes of the indices."""
        return tuple(self.index.shape)

    @property
    def kept(self) -> Tensor:
        """The indices."""
        return self.index

    def block(self, gradients: Float[Tensor, "R *B d"], examples: BatchAxis, num_examples: int) -> Block:
        """Indices n × L, G n × R × L × d."""
        axes = self.index.ndim
        index = examples.moved(self.index, num_examples, 0, axes)
        G = examples.moved(gradients, num_examples, 1, axes).transpose(0, 1).contiguous()
        if self.padding is not None:
            G = G * (index != self.padding)[:, None, :, None]
        return Lookup(index.contiguous(), G, self.parts, self.num_entries)


@rule(F.embedding)
def embedding(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """F.embedding(index, E), unless the call changes the table (max_norm) or its gradient (scale_grad_by_freq)."""
    index, weight = argument(args, kwargs, 0, "input"), argument(args, kwargs, 1, "weight")
    padding = argument(args, kwargs, 2, "padding_idx")
    changes = argument(args, kwargs, 3, "max_norm") is not None or argument(args, kwargs, 5, "scale_grad_by_freq")
    place = weights.find(weight)
    if place is None or changes:
        return None
    padding = None if padding is None else padding % len(weight)
    return LookupUse((place,), tuple(output.shape), index, len(weight), padding)
