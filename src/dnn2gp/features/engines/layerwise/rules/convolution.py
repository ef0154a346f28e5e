"""Convolutions in one, two and three dimensions, and transposed ones: linear maps of patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.graph import GradientEdge

from dnn2gp.features.blocks import Arrangement, Block, Outer, Rows
from dnn2gp.features.blocks.rows import CACHED
from dnn2gp.features.engines.layerwise.places import BatchAxis, FlatWeights
from dnn2gp.features.engines.layerwise.rules.base import Use, argument, rule
from dnn2gp.features.engines.layerwise.rules.convolution_rows import RowSizes, RowWay
from dnn2gp.features.engines.layerwise.rules.elementwise import Broadcast
from dnn2gp.features.engines.layerwise.rules.geometry import Geometry
from dnn2gp.support.memory import chunks


@dataclass(frozen=True, eq=False)
class _PatchUse(Use):
    """What both kinds of convolution keep: the input and the geometry."""

    x: Float[Tensor, "B C *space"]
    geometry: Geometry

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The first axis."""
        return (self.x.shape[0],)

    @property
    def kept(self) -> Tensor:
        """The input."""
        return self.x


# Positions for each entry of a patch from which rows are formed even if gradients at all positions take less memory.
_MANY_POSITIONS = 8
# The fewest examples at a time.
_FEW = 4
# Operations that the choice of positions by a max-pooling must save for each patch that is copied.
_WORTH_A_COPY = 16


@dataclass(frozen=True)
class Pooling:
    """max_pool(z): the position in z of each entry of the result, and where the gradient of the result is."""

    indices: Int[Tensor, "B O *windows"]
    edge: GradientEdge


@dataclass(frozen=True, eq=False)
class ConvolutionUse(_PatchUse):
    """z[:, l] = W patch_l + b: ∂f/∂W = Σ_l g_l patch_lᵀ, group by group."""

    pooling: Pooling | None = None

    def pooled(self, indices: Int[Tensor, "B O *windows"], edge: GradientEdge) -> ConvolutionUse:
        return replace(self, pooling=Pooling(indices, edge))

    def summed(self, num_rows: int) -> Use:
        """The sums over positions, if they take less memory or if there are many positions for a small patch."""
        space, channels, outputs = self.output_shape[2:], self.x.shape[1], self.output_shape[1]
        size, positions = channels * prod(self.geometry.kernel), prod(space)
        many = _MANY_POSITIONS * size <= positions
        smaller = num_rows * outputs * size <= positions * (size + num_rows * outputs)
        if self.geometry.groups > 1 or not (many or smaller):
            return self
        if many and self.pooling is not None:
            windows = self.pooling.indices[0, 0].numel()
            if num_rows * (positions - windows) > _WORTH_A_COPY * windows:
                shape = tuple(self.pooling.indices.shape)
                return PooledConvolutionUse(self.parts, shape, self.x, self.geometry, space, self.pooling)
        sizes = RowSizes(self.geometry, tuple(self.x.shape[1:]), tuple(self.output_shape[1:]), num_rows)
        return SummedConvolutionUse(self.parts, self.output_shape, self.x, self.geometry, sizes.way(self.x))

    def block(self, gradients: Float[Tensor, "R B O *space"], examples: BatchAxis, num_examples: int) -> Block:
        """A: n × i × L and G: n × R × o × L; rows if there are groups."""
        groups, space = self.geometry.groups, gradients.shape[3:]
        bias = len(self.parts) == 2
        patches = self.geometry.patches(self.x, space, bias=bias and groups == 1)
        G = gradients.flatten(3)
        if groups > 1:
            return _grouped(patches, G.unflatten(2, (groups, -1)), self.parts, examples, num_examples)
        A, G = _positions(patches.squeeze(1), G, examples, num_examples)
        return Outer(A, G, self.parts)


@dataclass(frozen=True, eq=False)
class SummedConvolutionUse(_PatchUse):
    """The rows Σ_l g_l patch_lᵀ of a few cotangents at a time, whose gradients g need not be kept afterwards."""

    way: RowWay

    @property
    def at_once(self) -> int:
        """As many as are fastest together."""
        return self.way.at_once

    def condensed(self, gradients: Float[Tensor, "R B O *space"]) -> Float[Tensor, "R B O i"]:
        """Σ_l g_l patch_lᵀ."""
        bias = len(self.parts) == 2
        return self.way.rows(self.geometry, self.x, gradients.transpose(0, 1), bias=bias).transpose(0, 1)

    def block(self, gradients: Float[Tensor, "R B O i"], examples: BatchAxis, num_examples: int) -> Rows:
        return _summed_rows(gradients, self.parts, examples, num_examples)


@dataclass(frozen=True, eq=False)
class PooledConvolutionUse(_PatchUse):
    """A convolution that only max_pool(z) depends on: ∂f/∂W_o = Σ_w g_ow patch_{l(o, w)}ᵀ.

    Of all positions l of channel o, only those l(o, w) that the pooling selected for its windows w have a derivative,
    so that gradients are needed for each window instead of each position.
    """

    space: tuple[int, ...]
    pooling: Pooling

    cotangent_axis: ClassVar[int] = 2

    @property
    def edge(self) -> GradientEdge:
        return self.pooling.edge

    def condensed(self, gradients: Float[Tensor, "R B O *windows"]) -> Float[Tensor, "R B O i"]:
        """Σ_w g_ow patch_{l(o, w)}ᵀ, a few examples at a time."""
        bias, positions = len(self.parts) == 2, prod(self.space)
        G, indices = gradients.flatten(3).permute(1, 2, 0, 3), self.pooling.indices.flatten(2)
        (B, O, R, W), i = G.shape, self.x.shape[1] * prod(self.geometry.kernel) + bias
        rows = gradients.new_empty(B, O, R, i)
        count = max(_FEW, CACHED // (O * W * i))
        buffer = gradients.new_empty(count * O * W, i)  # of one size for any B, as memory is measured
        for part in chunks(B, count):
            patches = self.geometry.patches(self.x[part], self.space, bias=bias).squeeze(1).mT.flatten(0, 1)
            own = indices[part]
            first = torch.arange(0, len(patches), positions, device=own.device)  # the first patch of each example
            chosen = (own + first.view(-1, 1, 1)).flatten()
            torch.index_select(patches, 0, chosen, out=buffer[: len(chosen)])
            torch.bmm(G[part].reshape(-1, R, W), buffer[: len(chosen)].view(-1, W, i), out=rows[part].view(-1, R, i))
        return rows.permute(2, 0, 1, 3)

    def block(self, gradients: Float[Tensor, "R B O i"], examples: BatchAxis, num_examples: int) -> Rows:
        return _summed_rows(gradients, self.parts, examples, num_examples)


def _summed_rows(
    gradients: Float[Tensor, "R B O i"], parts: tuple[slice, ...], examples: BatchAxis, num_examples: int
) -> Rows:
    """The rows, summed over whatever else the first axis counts."""
    rows = examples.moved(gradients.transpose(0, 1), num_examples, 0, 1)  # n c R o i
    rows = rows.squeeze(1) if rows.shape[1] == 1 else rows.sum(1)
    arrangement = Arrangement(rows.shape[2], rows.shape[3], len(parts) == 2)
    return Rows(rows.flatten(2), parts, arrangement=arrangement)


@dataclass(frozen=True, eq=False)
class TransposedConvolutionUse(_PatchUse):
    """The transpose of a convolution: ∂f/∂W[c] = Σ_l x_cl patch_l(g), with the patches taken from the gradient."""

    def block(self, gradients: Float[Tensor, "R B O *space"], examples: BatchAxis, num_examples: int) -> Block:
        """A = x: n × C × L; G = patches of the gradient: n × R × (O·kernel) × L; the weight lies as C × (O·kernel)."""
        groups, R = self.geometry.groups, gradients.shape[0]
        patches = self.geometry.patches(gradients.flatten(0, 1), self.x.shape[2:]).unflatten(0, (R, -1))
        x = self.x.flatten(2)
        if groups > 1:
            x = x.unflatten(1, (groups, -1))
            return _grouped(x, patches, self.parts, examples, num_examples, transposed=True)
        A, G = _positions(x, patches.squeeze(2), examples, num_examples)
        return Outer(A, G, self.parts, transposed=True)


def _positions(
    A: Float[Tensor, "B i L"], G: Float[Tensor, "R B o L"], examples: BatchAxis, num_examples: int
) -> tuple[Float[Tensor, "n i l"], Float[Tensor, "n R o l"]]:
    """Examples first; whatever else the first axis counts joins the positions."""
    A = examples.moved(A, num_examples, 0, 1)  # n c i L
    G = examples.moved(G, num_examples, 1, 1)  # R n c o L
    if A.shape[1] == 1:
        return A.squeeze(1), G.squeeze(2).transpose(0, 1).contiguous()
    return A.transpose(1, 2).flatten(2), G.permute(1, 0, 3, 2, 4).flatten(3)


def _grouped(
    A: Float[Tensor, "B g i L"],
    G: Float[Tensor, "R B g o L"],
    parts: tuple[slice, ...],
    examples: BatchAxis,
    num_examples: int,
    transposed: bool = False,
) -> Rows:
    """Rows of a convolution with groups, each of which has a small matrix of its own."""
    equation = "rbgol,bgil->brgio" if transposed else "rbgol,bgil->brgoi"
    rows = torch.einsum(equation, G, A).flatten(2)
    if len(parts) == 2:
        rows = torch.cat([rows, G.sum(-1).flatten(2).transpose(0, 1)], -1)
    return Rows(examples.moved(rows, num_examples, 0, 1).sum(1), parts)


def _sizes(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """One number per axis."""
    if isinstance(value, int):
        return (value,) * count
    return tuple(value) * count if len(value) == 1 else tuple(value)


def _padding(
    value: int | str | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    if value == "valid":
        return ((0, 0),) * len(kernel)
    if value == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    assert not isinstance(value, str)
    return tuple((p, p) for p in _sizes(value, len(kernel)))


def _bias_alone(weights: FlatWeights, bias: object, output: Tensor) -> Use | None:
    place = weights.find(bias)
    if place is None:
        return None
    return Broadcast((place,), tuple(output.shape), None, (output.shape[1], *(1,) * (output.ndim - 2)))


@rule(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """F.conv(x, W, b, stride, padding, dilation, groups)."""
    x, weight, bias = (argument(args, kwargs, i, n) for i, n in enumerate(("input", "weight", "bias")))
    axes = weight.ndim - 2
    if x.ndim != axes + 2 or weights.holds(x):
        return None
    if not weights.holds(weight):
        return _bias_alone(weights, bias, output)
    place, bias = weights.find(weight), weights.find(bias)
    if place is None:
        return None
    kernel, dilation = tuple(weight.shape[2:]), _sizes(argument(args, kwargs, 5, "dilation", 1), axes)
    geometry = Geometry(
        kernel,
        _sizes(argument(args, kwargs, 3, "stride", 1), axes),
        _padding(argument(args, kwargs, 4, "padding", 0), kernel, dilation),
        dilation,
        argument(args, kwargs, 6, "groups", 1),
    )
    return ConvolutionUse((place,) if bias is None else (place, bias), tuple(output.shape), x, geometry)


@rule(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def transposed_convolution(
    weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
) -> Use | tuple[Use, ...] | None:
    """F.conv_transpose(x, W, b, stride, padding, output_padding, groups, dilation)."""
    x, weight, bias = (argument(args, kwargs, i, n) for i, n in enumerate(("input", "weight", "bias")))
    axes = weight.ndim - 2
    if x.ndim != axes + 2 or weights.holds(x):
        return None
    alone = _bias_alone(weights, bias, output)
    if not weights.holds(weight):
        return alone
    place = weights.find(weight)
    if place is None:
        return None
    kernel, stride = tuple(weight.shape[2:]), _sizes(argument(args, kwargs, 3, "stride", 1), axes)
    dilation = _sizes(argument(args, kwargs, 7, "dilation", 1), axes)
    before = _sizes(argument(args, kwargs, 4, "padding", 0), axes)
    # The gradient must reach over every patch: (size − 1) stride + dilation (kernel − 1) + 1 entries per axis.
    after = tuple(
        (size - 1) * s + d * (k - 1) + 1 - out - p
        for size, s, d, k, out, p in zip(x.shape[2:], stride, dilation, kernel, output.shape[2:], before, strict=True)
    )
    geometry = Geometry(
        kernel, stride, tuple(zip(before, after, strict=True)), dilation, argument(args, kwargs, 6, "groups", 1)
    )
    use = TransposedConvolutionUse((place,), tuple(output.shape), x, geometry)
    return use if alone is None else (use, alone)
