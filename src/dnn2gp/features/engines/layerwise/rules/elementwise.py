"""Weights that are added or multiplied elementwise: biases, scales, positional embeddings, slopes of PReLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks import Block, Rows
from dnn2gp.features.engines.layerwise.places import BatchAxis, FlatWeights
from dnn2gp.features.engines.layerwise.rules.base import Use, argument, rule


@dataclass(frozen=True, eq=False)
class Broadcast(Use):
    """∂f/∂w = Σ g ∘ m over the axes along which w was broadcast; m = 1 for a weight that is added."""

    factor: Tensor | None
    """m, broadcastable to the output."""
    weight_shape: tuple[int, ...]
    sign: float = 1.0

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """All axes of the output."""
        return self.output_shape

    @property
    def kept(self) -> Tensor | None:
        """m."""
        return self.factor

    def block(self, gradients: Float[Tensor, "R ..."], examples: BatchAxis, num_examples: int) -> Block:
        """Rows: the weighted gradients of each example, summed to the shape of the weight."""
        weighted = gradients if self.factor is None else gradients * self.factor
        weighted = weighted if self.sign == 1 else weighted * self.sign
        axis = examples.axis + 1
        split = weighted.unflatten(axis, _split(weighted.shape[axis], num_examples, examples.outer))
        moved = split.movedim(axis if examples.outer else axis + 1, 0)  # examples, R, the axes of the output
        shape = (1,) * (len(self.output_shape) - len(self.weight_shape)) + self.weight_shape
        summed = moved.sum_to_size(*moved.shape[:2], *shape)
        return Rows(summed.flatten(2), self.parts)


def _split(size: int, num_examples: int, outer: bool) -> tuple[int, int]:
    other = size // num_examples
    return (num_examples, other) if outer else (other, num_examples)


def _operands(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[slice, Tensor, Any] | None:
    """(range of the weight, the weight, the other operand) if exactly one of two operands is a contiguous weight."""
    if kwargs or len(args) != 2:
        return None
    for weight, other in (args, args[::-1]):
        place = weights.find(weight)
        if place is not None and isinstance(weight, Tensor):
            return None if weights.holds(other) else (place, weight, other)
    return None


@rule(torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
def add(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """x + w."""
    found = _operands(weights, args, kwargs)
    if found is None:
        return None
    place, weight, _ = found
    return Broadcast((place,), tuple(output.shape), None, tuple(weight.shape))


@rule(torch.sub, Tensor.sub, Tensor.sub_, Tensor.__sub__, Tensor.__isub__)
def subtract(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """x − w, and w − x."""
    found = _operands(weights, args, kwargs)
    if found is None:
        return None
    place, weight, _ = found
    return Broadcast((place,), tuple(output.shape), None, tuple(weight.shape), -1.0 if weight is args[1] else 1.0)


@rule(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
def multiply(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """x ∘ w."""
    found = _operands(weights, args, kwargs)
    if found is None or not isinstance(found[2], Tensor):
        return None
    place, weight, other = found
    return Broadcast((place,), tuple(output.shape), other, tuple(weight.shape))


@rule(F.prelu, torch.prelu)
def prelu(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """max(x, 0) + w min(x, 0), with one w, or one per channel."""
    x, weight = argument(args, kwargs, 0, "input"), argument(args, kwargs, 1, "weight")
    place = weights.find(weight)
    if place is None or weights.holds(x):
        return None
    shape = (weight.numel(), *(1,) * (x.ndim - 2)) if weight.numel() > 1 else (1,)
    return Broadcast((place,), tuple(output.shape), x.clamp(max=0), shape)
