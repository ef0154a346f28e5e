"""The layerwise engine: from one forward pass and R output cotangents, every layer's inputs A and output gradients G.

Nothing here has R · P numbers an example: a layer's block is held as the factors that its rule gives (`rules/`), and
every product of `FeatureMap` is a sum over the layers. Weights that no rule knows are left to the general engine.
"""

from __future__ import annotations

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.errors import FallbackWarning, NetworkError
from dnn2gp.features.blocks import Block, Rows
from dnn2gp.features.cotangents import Cotangents, identity, resolved
from dnn2gp.features.factors import Factors
from dnn2gp.features.footprint import Footprint
from dnn2gp.features.functional import JacobianFeatures
from dnn2gp.features.jacobian import NetworkFeatures, attempt
from dnn2gp.features.layerwise.capture import Recorder, gradients
from dnn2gp.features.layerwise.merging import merged
from dnn2gp.features.layerwise.size import BlockSize
from dnn2gp.features.layerwise.uses import Uses, find_uses
from dnn2gp.features.layerwise.weights import FlatWeights
from dnn2gp.inputs import Inputs, differentiable, leaves, num_examples, take
from dnn2gp.network import Network


class LayerwiseFeatures(NetworkFeatures):
    """J_w(x) by the factors of each layer; exact, for every network, with the general engine for what has no rule."""

    @torch.inference_mode(False)
    def __init__(
        self,
        network: Network,
        inputs: Inputs,
        anchor: Float[Tensor, " P"] | None = None,
        memory_budget: int | float | None = None,
    ) -> None:
        """Learn from a few of `inputs` where the weights are used, and check every rule on them against autograd."""
        super().__init__(network, inputs, anchor, memory_budget)
        self._flat = self.anchor.detach().clone()
        self._weights = FlatWeights(self._flat)
        self._names = network.layout.ranges
        self._copy, self._batched = False, True
        self._learned: dict[object, Uses] = {}
        self._left: set[str] = set()
        self._rest_parts: tuple[slice, ...] = ()
        self.rest: JacobianFeatures | None = None
        """The general engine, for the weights that no rule knows."""
        self._uses(inputs)

    @torch.inference_mode(False)
    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None) -> Factors:
        """UᵀJ by the layers' blocks."""
        blocks = merged(self._blocks(inputs, cotangents, self._uses(inputs)))
        return Factors((*blocks, *self._rest_blocks(inputs, cotangents)), self.num_weights)

    @property
    def parts(self) -> list[slice]:
        """The ranges of weights that the blocks are made of."""
        return [part for size in self._sizes for part in size.parts] + list(self._rest_parts)

    def footprint(self, num_rows: int) -> Footprint:
        """The activations, A once and G for each row; the kept factors of each block; R · P for rows."""
        size = self.anchor.element_size()
        made = sum(block.made(num_rows) for block in self._sizes)
        capture = self._saved + made + 3 * num_rows * self._largest
        kept = sum(block.kept(num_rows) for block in self._sizes)
        operations = sum(block.operations(num_rows) for block in self._sizes) + 6.0 * num_rows * self._saved
        rows = size * num_rows * self.num_weights
        if self.rest is None:
            return Footprint(size * capture, size * kept, rows, operations)
        rest = self.rest.footprint(num_rows)
        return Footprint(size * capture + rest.capture, size * kept + rest.factors, rows, operations + rest.operations)

    def pair_operations(self, left_rows: int, right_rows: int, *, trace: bool = False) -> float:
        """Operations of a kernel's entry, by the way that each block takes."""
        own = sum(block.pair_operations(left_rows, right_rows, trace=trace) for block in self._sizes)
        rest = 0 if self.rest is None else self.rest.pair_operations(left_rows, right_rows, trace=trace)
        return own + rest

    def kronecker_numbers(self) -> int:
        """i² + o² for each layer; p² where there are no factors."""
        own = sum(size.kronecker_numbers() for size in self._sizes)
        return own + (0 if self.rest is None else self.rest.num_weights**2)

    def _blocks(self, inputs: Inputs, cotangents: Cotangents | None, uses: Uses) -> list[Block]:
        """The block of each use, in the order of the forward pass."""
        graph = differentiable(inputs)
        recorder, outputs = self.record(inputs)
        if tuple(use.parts for use, _ in recorder.uses) != uses.parts:
            raise NetworkError(
                "The network's forward uses its weights in another order for these inputs than for the first ones of "
                "the same shape: it branches on the values of its inputs. Use features=JacobianFeatures for it."
            )
        chosen = [(use, edge, axis) for (use, edge), axis in zip(recorder.uses, uses.axes, strict=True) if axis]
        if not chosen:
            return []
        with torch.no_grad():
            columns = resolved(identity if cotangents is None else cotangents, outputs).permute(2, 0, 1)
        edges = [edge for _, edge, _ in chosen]
        found = gradients(
            outputs,
            edges,
            columns,
            batched=self._batched,
            create_graph=graph,
            activations=self._saved * num_examples(inputs),
        )
        del outputs, edges
        blocks = []
        with torch.set_grad_enabled(graph):
            for position, (use, _, axis) in enumerate(chosen):
                gradient = found[position]
                found[position] = None  # so that it is freed as soon as its block is made
                if gradient is None:  # an output that f does not depend on
                    gradient = columns.new_zeros(len(columns), *use.output_shape)
                blocks.append(use.block(gradient, axis, num_examples(inputs)))
        return blocks

    def record(self, inputs: Inputs) -> tuple[Recorder, Float[Tensor, "N K"]]:
        """A forward pass in which every use of a weight is noted."""
        graph = differentiable(inputs)
        with torch.enable_grad():
            recorder = Recorder(self._weights, copy=self._copy, keep_graph=graph)
            flat = self._flat.detach().requires_grad_(True)
            with recorder:
                outputs = self.network(flat, inputs)
        if recorder.changed() and not self._copy:
            self._copy = True
            return self.record(inputs)
        return recorder, outputs

    def _rest_blocks(self, inputs: Inputs, cotangents: Cotangents | None) -> list[Block]:
        if self.rest is None:
            return []
        return [Rows(self.rest.factors(inputs, cotangents).rows(), self._rest_parts)]

    def _uses(self, inputs: Inputs) -> Uses:
        """What is known of inputs of this form; learned when they first come."""
        form = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves(inputs))
        if form not in self._learned:
            self._learned[form] = self._learn(inputs)
        return self._learned[form]

    def _learn(self, inputs: Inputs) -> Uses:
        """Find the uses and where the examples are in them; what cannot be had by rules goes to the general engine."""
        count = num_examples(inputs)
        three = take(inputs, torch.arange(3) % count)
        uses, unknown = find_uses(self.record(take(three, slice(0, 2)))[0], *self.record(three), self._names)
        uses, wrong = self._verified(three, uses.without(unknown, self._names))
        unknown |= wrong
        self._leave(unknown, inputs)
        uses = uses.without(self._left, self._names)
        self._sizes = tuple(BlockSize.of(block) for block in merged(self._blocks(three, self._probe(3), uses)))
        return uses

    def _verified(self, three: Inputs, uses: Uses) -> tuple[Uses, set[str]]:
        """Compare Jᵀu of each example with a plain backward pass; weights for which no reading of the axes agrees."""
        cotangents = self._probe(3)
        expected = torch.stack([self.vjp(take(three, slice(i, i + 1)), cotangents[i : i + 1])[:, 0] for i in range(3)])
        found = attempt(lambda: self._pulled(three, cotangents, uses))
        if found is None and self._batched:
            self._batched = False  # a layer has no batching rule: one backward pass a cotangent
            found = attempt(lambda: self._pulled(three, cotangents, uses))
        if found is None:
            return uses, set(self._names)
        wrong = self._disagreeing(found, expected)
        if wrong:
            turned = uses.turned(wrong, self._names)
            again = self._disagreeing(self._pulled(three, cotangents, turned), expected)
            if again < wrong:
                return turned, again
        return uses, wrong

    def _pulled(self, three: Inputs, cotangents: Tensor, uses: Uses) -> Float[Tensor, "3 P"]:
        blocks = merged(self._blocks(three, cotangents, uses))
        if not blocks:
            return self._flat.new_zeros(3, self.num_weights)
        return Factors(tuple(blocks), self.num_weights).rows().squeeze(1)

    def _disagreeing(self, found: Float[Tensor, "3 P"], expected: Float[Tensor, "3 P"]) -> set[str]:
        eps, largest = torch.finfo(expected.dtype).eps, expected.abs().max()
        gaps = (found - expected).abs()
        return {
            name
            for name, part in self._names.items()
            if gaps[:, part].numel()
            and gaps[:, part].max() > eps * (1e4 * expected[:, part].abs().max() + 1e2 * largest)
        }

    def _probe(self, count: int) -> Float[Tensor, "n K 1"]:
        generator = torch.Generator().manual_seed(1)
        values = torch.randn(count, self.num_outputs, 1, generator=generator, dtype=torch.float64)
        return values.to(self._flat)

    def _leave(self, unknown: set[str], inputs: Inputs) -> None:
        """Leave these weights to the general engine, and say so."""
        if unknown <= self._left:
            return
        self._left |= unknown
        names = [name for name in self._names if name in self._left]
        state = {**self.network.state(), **self.network.layout.unflatten(self._flat)}
        network = Network(self.network.module, inputs, state=state, trainable=names)
        self.rest = JacobianFeatures(network, inputs, memory_budget=self.memory_budget)
        self._rest_parts = tuple(self._names[name] for name in names)
        self._learned = {form: uses.without(self._left, self._names) for form, uses in self._learned.items()}
        share = network.num_weights / self.num_weights
        warnings.warn(
            f"No layer rule fits the weights {_listed(names)}, {share:.0%} of all: the general engine (torch.func) "
            "takes these, right but slower. A rule for a layer of your own: see CONTRIBUTING.",
            FallbackWarning,
            stacklevel=2,
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
