"""A recorded forward pass, and the blocks of the Jacobian that its backward passes give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge

from dnn2gp.features.blocks import Block
from dnn2gp.features.engines.layerwise.capture import UseRecorder, gradients
from dnn2gp.features.engines.layerwise.rules import Use
from dnn2gp.features.engines.layerwise.uses import Uses
from dnn2gp.features.engines.layerwise.weights import FlatWeights
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, differentiable, num_examples
from dnn2gp.support.errors import NetworkError

# Numbers that an example's factors must have for one backward pass per cotangent to be worth its overhead.
_WORTH_A_PASS = 1 << 12


@dataclass(frozen=True, eq=False)
class Recording:
    """One forward pass: the uses of the weights, the outputs, and the flat weights that they were computed from.

    The weights are recognised by their address, so they are a copy that this pass alone has.
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
        if recorder.changed():
            raise NetworkError(
                "The network changes a tensor in place after a layer has used it, so the layer has no derivative. "
                "Look for x.mul_(…), x += … or inplace=True on tensors that were used before."
            )
        return Recording(recorder, outputs, flat, num_examples(inputs), graph)

    def matched(self, uses: Uses) -> list[tuple[Use, GradientEdge]]:
        """The uses that were learned, in this pass."""
        found = uses.matched(self.recorder, self.num_examples)
        if found is None:
            raise NetworkError(
                "The network uses its weights differently for these inputs than for the first ones of the same shape: "
                "its forward branches on the values of its inputs. Use features=JacobianFeatures for it."
            )
        return found

    def blocks(self, uses: Uses, columns: Float[Tensor, "R N K"], *, apart: bool = False) -> list[Block]:
        """UᵀJ by one block per use, in the order of the forward pass. The graph of the pass is freed."""
        chosen = self.matched(uses)
        if not apart and not self.graph:
            chosen = [(use.summed(), edge) for use, edge in chosen]
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
