"""A recorded forward pass, and the blocks of the Jacobian that its backward passes give.

A weight that is used several times gets one block, the sum of the Jacobians of its uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge

from dnn2gp.features.blocks import Block, Lookup, Outer, Rows
from dnn2gp.features.engines.layerwise.capture import UseRecorder, gradients
from dnn2gp.features.engines.layerwise.places import FlatWeights
from dnn2gp.features.engines.layerwise.rules import Use
from dnn2gp.features.engines.layerwise.uses import Uses
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, differentiable, num_examples
from dnn2gp.support.errors import NetworkError


def merged(blocks: Sequence[Block]) -> list[Block]:
    """Blocks that do not overlap, in the order of w, each the sum of the given blocks that share weights."""
    groups: list[list[Block]] = []
    for block in blocks:
        touching = [group for group in groups if any(_overlap(block, other) for other in group)]
        groups = [group for group in groups if group not in touching]
        groups.append([other for group in touching for other in group] + [block])
    return [_sum(group) for group in sorted(groups, key=lambda group: group[0].parts[0].start)]


def _overlap(left: Block, right: Block) -> bool:
    return any(a.start < b.stop and b.start < a.stop for a in left.parts for b in right.parts)


def _sum(group: list[Block]) -> Block:
    """The sum of the uses: outer products or lookups with more positions, otherwise a sum of rows."""
    first = group[0]
    if len(group) == 1:
        return first
    if all(block.parts == first.parts for block in group):
        outers = [block for block in group if isinstance(block, Outer)]
        if len(outers) == len(group) and all(
            block.arrangement.transposed == outers[0].arrangement.transposed for block in outers
        ):
            factors = torch.cat([o.A for o in outers], 2), torch.cat([o.G for o in outers], 3)
            return outers[0].with_factors(*factors)
        lookups = [block for block in group if isinstance(block, Lookup)]
        if len(lookups) == len(group):
            index, G = torch.cat([block.index for block in lookups], 1), torch.cat([block.G for block in lookups], 2)
            return Lookup(index, G, first.parts, lookups[0].num_entries)
    return _summed_rows(group)


def _summed_rows(group: list[Block]) -> Rows:
    parts = _union([part for block in group for part in block.parts])
    starts, place = {}, 0
    for part in parts:
        starts[part.start] = place
        place += part.stop - part.start
    first = group[0]
    total = first.tensors()[-1].new_zeros(first.num_examples, first.num_rows, place)
    for block in group:
        for part, piece in zip(
            block.parts, block.rows().split([p.stop - p.start for p in block.parts], -1), strict=True
        ):
            home = next(whole for whole in parts if whole.start <= part.start < whole.stop)
            start = starts[home.start] + part.start - home.start
            total[..., start : start + part.stop - part.start] += piece
    return Rows(total, parts)


def _union(parts: list[slice]) -> tuple[slice, ...]:
    """The sorted union of these ranges."""
    result: list[slice] = []
    for part in sorted(parts, key=lambda part: part.start):
        if result and part.start < result[-1].stop:
            result[-1] = slice(result[-1].start, max(result[-1].stop, part.stop))
        else:
            result.append(part)
    return tuple(result)


# Numbers that an example's factors must have for one backward pass per cotangent to be worth its overhead.
_WORTH_A_PASS = 1 << 12


@dataclass(frozen=True, eq=False)
class Recording:
    """One forward pass: the uses of the weights, the outputs, and the flat weights that they were computed from.

    The weights are recognised by their address, so each pass has its own copy.
    """

    recorder: UseRecorder
    outputs: Float[Tensor, "N K"]
    flat: Float[Tensor, " P"]
    num_examples: int
    graph: bool
    """Whether results are to be differentiated with respect to the inputs."""

    @staticmethod
    def of(network: Network, anchor: Float[Tensor, " P"], inputs: Inputs) -> Recording:
        """Run the network at these weights."""
        graph = differentiable(inputs)
        with torch.enable_grad():
            flat = anchor.detach().clone().requires_grad_(True)
            recorder = UseRecorder(FlatWeights(flat), keep_graph=graph)
            with recorder:
                outputs = network(flat, inputs)
            recorder.end(outputs)
        if recorder.changed():
            raise NetworkError(
                "network: it changes a tensor in place after a layer has used it, so the layer has no derivative. "
                "Look for x.mul_(…), x += … or inplace=True on tensors that were used before."
            )
        return Recording(recorder, outputs, flat, num_examples(inputs), graph)

    def matched(self, uses: Uses) -> list[tuple[Use, GradientEdge]]:
        """The uses that were learned, in this pass."""
        found = uses.matched(self.recorder, self.num_examples)
        if found is None:
            raise NetworkError(
                "network: it uses its weights differently for these inputs than for the first ones of the same "
                "shape: its forward branches on the values of its inputs. Use features=JacobianFeatures for this "
                "network."
            )
        return found

    def blocks(
        self, uses: Uses, columns: Float[Tensor, "R N K"], *, apart: bool = False, rows: int | None = None
    ) -> list[Block]:
        """UᵀJ by one block per use, in the order of the forward pass. The graph of the pass is freed.

        `rows`: the uses take the form that they have for this many cotangents, if not for R.
        """
        chosen = self.matched(uses)
        if not apart and not self.graph:
            summed = [(use.summed(rows or len(columns)), edge) for use, edge in chosen]
            chosen = [(use, use.edge or edge) for use, edge in summed]
        batched = uses.batched and not self.graph and uses.numbers < _WORTH_A_PASS
        found = gradients(self.outputs, chosen, columns, batched=batched, create_graph=self.graph)
        with torch.set_grad_enabled(self.graph):
            return self._made(chosen, found, columns, uses)

    def _made(
        self, chosen: Sequence[tuple[Use, GradientEdge]], found: list[Tensor | None], columns: Tensor, uses: Uses
    ) -> list[Block]:
        blocks = []
        for position, ((use, _), axis) in enumerate(zip(chosen, uses.axes, strict=True)):
            gradient = found[position]
            found[position] = None  # so that it is freed as soon as its block is made
            if gradient is None:  # an output that f does not depend on
                gradient = use.condensed(columns.new_zeros(len(columns), *use.output_shape))
            blocks.append(use.block(gradient, axis, self.num_examples))
        return blocks
