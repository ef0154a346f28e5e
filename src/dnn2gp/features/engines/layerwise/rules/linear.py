"""Linear layers, at one position or at many: z = W a + b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks import Block, Outer
from dnn2gp.features.engines.layerwise.places import BatchAxis, FlatWeights
from dnn2gp.features.engines.layerwise.rules.base import Use, argument, rule
from dnn2gp.features.engines.layerwise.rules.elementwise import Broadcast


@dataclass(frozen=True, eq=False)
class MatrixUse(Use):
    """z_l = W a_l + b at every position l of the batch axes: ∂f/∂W = Σ_l g_l a_lᵀ."""

    x: Float[Tensor, "*B i"]
    transposed: bool

    cotangent_axis: ClassVar[int] = -2

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """All axes but the last."""
        return tuple(self.x.shape[:-1])

    @property
    def kept(self) -> Tensor:
        """The input."""
        return self.x

    def block(self, gradients: Float[Tensor, "R *B o"], examples: BatchAxis, num_examples: int) -> Block:
        """A: n × i × L; G: n × R × o × L."""
        axes = self.x.ndim - 1
        A = examples.moved(self.x, num_examples, 0, axes)  # n L i
        G = examples.moved(gradients, num_examples, 1, axes)  # R n L o
        if len(self.parts) == 2:
            A = torch.cat([A, A.new_ones(num_examples, A.shape[1], 1)], 2)
        elif A.untyped_storage().nbytes() > 2 * A.nbytes and not A.requires_grad:
            A = A.clone()  # a part of something larger, which need not be kept for it
        return Outer(A.mT, G.permute(1, 0, 3, 2), self.parts, transposed=self.transposed)


def _bias(place: slice, output: Tensor) -> Use:
    """A bias without a trainable weight."""
    return Broadcast((place,), tuple(output.shape), None, (output.shape[-1],))


@rule(F.linear)
def linear(
    weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
) -> Use | tuple[Use, ...] | None:
    """F.linear(x, W, b)."""
    x, weight = argument(args, kwargs, 0, "input"), argument(args, kwargs, 1, "weight")
    bias = weights.find(argument(args, kwargs, 2, "bias"))
    if weights.holds(x):
        return None
    if not weights.holds(weight):
        return None if bias is None else _bias(bias, output)
    if weight.ndim != 2:
        return None
    place, turned = weights.find(weight), weights.find(weight.mT)
    if place is None and turned is not None:
        use = MatrixUse((turned,), tuple(output.shape), x, transposed=True)
        return use if bias is None else (use, _bias(bias, output))
    if place is None:
        return None
    return MatrixUse((place,) if bias is None else (place, bias), tuple(output.shape), x, transposed=False)


@rule(torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
def right_product(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """x @ W, with the weight as i × o (or the transpose of one that lies as o × i)."""
    if kwargs or len(args) != 2 or weights.holds(args[0]) or args[1].ndim != 2 or args[0].ndim < 2:
        return None
    x, weight = args
    place, turned = weights.find(weight), weights.find(weight.mT)
    if turned is not None:
        return MatrixUse((turned,), tuple(output.shape), x, transposed=False)
    return None if place is None else MatrixUse((place,), tuple(output.shape), x, transposed=True)
