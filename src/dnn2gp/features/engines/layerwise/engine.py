"""The layerwise engine: from one forward pass and R output cotangents, every layer's inputs A and output gradients G.

Nothing here has R · P numbers an example: a layer's block is held as the factors that its rule gives (`rules/`), and
every product of `FeatureMap` is a sum over the layers. Weights that no rule knows are left to the general engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks import Block, Rows
from dnn2gp.features.budget.footprint import Footprint
from dnn2gp.features.budget.size import BlockSize
from dnn2gp.features.budget.work import MemoryTrial
from dnn2gp.features.cotangents import Cotangents, identity, resolved
from dnn2gp.features.engines.layerwise.capture import UseRecorder, gradients
from dnn2gp.features.engines.layerwise.merging import merged
from dnn2gp.features.engines.layerwise.uses import Uses, find_uses
from dnn2gp.features.engines.layerwise.weights import FlatWeights
from dnn2gp.features.engines.network_features import NetworkFeatures, attempt
from dnn2gp.features.engines.torch_func import JacobianFeatures
from dnn2gp.features.factors import Factors
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, differentiable, leaves, map_inputs, num_examples, take
from dnn2gp.support.errors import FallbackWarning, NetworkError, warn_user

# Numbers that an example's factors must have for one backward pass for each cotangent to be worth its overhead.
_WORTH_A_PASS = 1 << 12


@dataclass
class Checks:
    """When chunks are checked as a whole: the first one after a few examples, and again each time that their number
    has doubled. Copies of an engine at other weights count together."""

    seen: int = 0
    next: int = 16

    def due(self, count: int) -> bool:
        """Whether to check a chunk of so many examples."""
        self.seen += count
        if self.seen < self.next:
            return False
        self.next = 2 * self.seen
        return True


class LayerwiseFeatures(NetworkFeatures):
    """J_w(x) by the factors of each layer; exact, for every network, with the general engine for what has no rule."""

    @torch.inference_mode(False)
    def __init__(
        self,
        network: Network,
        inputs: Inputs,
        anchor: Float[Tensor, " P"] | None = None,
        memory_budget: int | float | None = None,
        *,
        must_move: bool = True,
    ) -> None:
        """Learn from a few of `inputs` where the weights are used, and check every rule on them against autograd."""
        super().__init__(network, inputs, anchor, memory_budget, must_move=must_move)
        self._flat = self.anchor.detach().clone()
        self._weights = FlatWeights(self._flat)
        self._names = network.layout.ranges
        self._batched = True
        self._checks, self._trying = Checks(), False
        self._learned: dict[object, Uses] = {}
        self._left: set[str] = set()
        self._rest_parts: tuple[slice, ...] = ()
        self.rest: JacobianFeatures | None = None
        """The general engine, for the weights that no rule knows."""
        self._uses(inputs)

    fewest = 2

    @torch.inference_mode(False)
    def at(self, anchor: Float[Tensor, " P"], network: Network | None = None) -> LayerwiseFeatures:
        """With the weights that have no rule moved too."""
        moved = super().at(anchor, network)
        assert isinstance(moved, LayerwiseFeatures)
        moved._flat = anchor.detach().clone()
        moved._weights = FlatWeights(moved._flat)
        if self.rest is not None:
            tensors = {**moved.network.state(), **self.network.layout.unflatten(moved._flat)}
            rest = self.rest.network.with_state(tensors)
            moved.rest = self.rest.at(rest.weights, rest)  # pyright: ignore[reportAttributeAccessIssue]
        return moved

    @torch.inference_mode(False)
    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None, *, apart: bool = False) -> Factors:
        """UᵀJ by the layers' blocks.

        One example is made twice: what a network does with a batch of one (expand, squeeze) may not show where it is.
        """
        if num_examples(inputs) == 1:
            columns = cotangents.expand(2, -1, -1) if isinstance(cotangents, Tensor) else cotangents
            return self.factors(
                take(inputs, torch.zeros(2, dtype=torch.long, device="cpu")), columns, apart=apart
            ).take(slice(0, 1))
        found, check = self._blocks(inputs, cotangents, self._uses(inputs), apart=apart)
        blocks = merged(found)
        del found
        if check is not None:
            self._check_sum(blocks, *check)
        return Factors((*blocks, *self._rest_blocks(inputs, cotangents)), self.num_weights)

    @property
    def parts(self) -> list[slice]:
        """The ranges of weights that the blocks are made of."""
        return [part for size in self._sizes for part in size.parts] + list(self._rest_parts)

    def footprint(self, inputs: Inputs, num_rows: int) -> Footprint:
        """The kept factors of each block: A once and G for each row, or R · p for rows."""
        size, blocks = self.anchor.element_size(), self._uses(inputs).sizes
        kept = size * sum(block.kept(num_rows) for block in blocks)
        operations = sum(block.operations(num_rows) for block in blocks) + 6.0 * num_rows * self._saved
        rows = size * num_rows * self.num_weights
        if self.rest is None:
            return Footprint(kept, rows, operations, blocks)
        rest = self.rest.footprint(inputs, num_rows)
        return Footprint(kept + rest.factors, rows, operations + rest.operations, blocks)

    def _trial(self, inputs: Inputs, num_rows: int, apart: bool) -> MemoryTrial:
        """With what the check of a chunk needs."""
        self._uses(inputs)
        with self.unchecked():
            return self.checked(super()._trial(inputs, num_rows, apart))

    def checked(self, trial: MemoryTrial) -> MemoryTrial:
        """With a check (see `_due`): a vector of all weights while factors are made, their sum, and three vectors."""
        size = self.anchor.nbytes
        return trial.plus(size).then(lambda factors: factors.pull(factors.ones(1)), 3 * size)

    @contextmanager
    def unchecked(self) -> Iterator[None]:
        """Chunks in here are trials."""
        self._trying = True
        try:
            yield
        finally:
            self._trying = False

    def fast_chunk(self, num_rows: int) -> int:
        """So many that the gradients of one activation for all rows, or the patches of one convolution, have about 8
        million numbers."""
        patches = max((size.a for size in self._sizes), default=0)
        numbers = max(1, num_rows * self._largest, patches)
        return max(8, min(super().fast_chunk(num_rows), (1 << 23) // numbers))

    def pair_operations(self, left_rows: int, right_rows: int, *, trace: bool = False) -> float:
        """Operations of a kernel's entry, by the way that each block takes."""
        own = sum(block.pair_operations(left_rows, right_rows, trace=trace) for block in self._sizes)
        rest = 0 if self.rest is None else self.rest.pair_operations(left_rows, right_rows, trace=trace)
        return own + rest

    def kronecker_numbers(self) -> int:
        """i² + o² for each layer; p² where there are no factors."""
        own = sum(size.kronecker_numbers() for size in self._sizes)
        return own + (0 if self.rest is None else self.rest.num_weights**2)

    def _blocks(
        self, inputs: Inputs, cotangents: Cotangents | None, uses: Uses, *, apart: bool = False, learned: bool = True
    ) -> tuple[list[Block], tuple[Tensor, Tensor] | None]:
        """The block of each use, in the order of the forward pass; once they are `learned`, some chunks come with a
        check of them (see `_sum_of_rows`)."""
        if not uses.axes:
            return [], None
        graph, count = differentiable(inputs), num_examples(inputs)
        recorder, outputs, flat = self._record(inputs)
        chosen = uses.matched(recorder, count)
        if chosen is None:
            raise NetworkError(
                "The network's forward uses its weights in another way for these inputs than for the first ones of the "
                "same shape: it branches on the values of its inputs. Use features=JacobianFeatures for it."
            )
        if not apart and not graph:
            chosen = [(use.summed(), edge) for use, edge in chosen]
        with torch.no_grad():
            columns = resolved(identity if cotangents is None else cotangents, outputs).permute(2, 0, 1)
            checked = learned and (recorder.rearranges or self._due(count))
            check = self._sum_of_rows(outputs, flat, columns) if checked else None
        batched = self._batched and not graph and uses.numbers < _WORTH_A_PASS
        found = gradients(outputs, chosen, columns, batched=batched, create_graph=graph)
        del outputs, flat
        blocks = []
        with torch.set_grad_enabled(graph):
            for position, ((use, _), axis) in enumerate(zip(chosen, uses.axes, strict=True)):
                gradient = found[position]
                found[position] = None  # so that it is freed as soon as its block is made
                if gradient is None:  # an output that f does not depend on
                    gradient = use.condensed(columns.new_zeros(len(columns), *use.output_shape))
                blocks.append(use.block(gradient, axis, count))
        return blocks, check

    def _record(self, inputs: Inputs) -> tuple[UseRecorder, Float[Tensor, "N K"], Float[Tensor, " P"]]:
        """A forward pass in which every use of a weight is noted: the notes, the outputs, and the weights."""
        with torch.enable_grad():
            recorder = UseRecorder(self._weights, keep_graph=differentiable(inputs))
            flat = self._flat.detach().requires_grad_(True)
            with recorder:
                outputs = self.network(flat, inputs)
        if recorder.changed():
            raise NetworkError(
                "The network changes a tensor in place after a layer has used it, so that the layer has no derivative. "
                "Look for x.mul_(…), x += … or inplace=True on tensors that are used before."
            )
        return recorder, outputs, flat

    def _due(self, count: int) -> bool:
        """Whether to check this chunk as a whole: the first one after the few that were learned from, and again each
        time that the number of examples has doubled, so that checks cost little in the long run."""
        if self._trying:
            return False
        return self._checks.due(count)

    def _sum_of_rows(
        self, outputs: Tensor, flat: Tensor, columns: Float[Tensor, "R N K"]
    ) -> tuple[Float[Tensor, "N R 1"], Float[Tensor, " P"]]:
        """Random numbers v, and Jᵀ(U v) by a plain backward pass: what the blocks of these examples must give too."""
        generator = torch.Generator().manual_seed(2)
        mixing = torch.randn(columns.shape[1], len(columns), 1, generator=generator, dtype=torch.float64).to(columns)
        mixed = (columns.permute(1, 2, 0) @ mixing).squeeze(-1)
        return mixing, torch.autograd.grad(outputs, flat, mixed, retain_graph=True)[0]

    def _check_sum(self, blocks: list[Block], mixing: Float[Tensor, "N R 1"], expected: Float[Tensor, " P"]) -> None:
        """Where a network picks or orders things by value, see that each example still is where it was."""
        found = Factors(tuple(blocks), self.num_weights).pull(mixing.detach())[:, 0]
        if self._disagreeing(found.detach().unsqueeze(0), expected.unsqueeze(0), 1e4) - self._left:
            raise NetworkError(
                "The network's forward does with these examples what it did not do with the first ones: it picks or "
                "orders them by their values, or uses weights in another way. Use features=JacobianFeatures for it."
            )

    def _rest_blocks(self, inputs: Inputs, cotangents: Cotangents | None) -> list[Block]:
        if self.rest is None:
            return []
        return [Rows(self.rest.factors(inputs, cotangents).rows(), self._rest_parts)]

    @torch.inference_mode(False)
    def _uses(self, inputs: Inputs) -> Uses:
        """What is known of inputs of this form; learned when they first come."""
        form = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves(inputs))
        if form not in self._learned:
            self._learned[form] = self._learn(inputs)
        return self._learned[form]

    def _learn(self, inputs: Inputs) -> Uses:
        """Find the uses and where the examples are in them; what cannot be had by rules goes to the general engine."""
        three = map_inputs(torch.Tensor.detach, take(inputs, torch.arange(3, device="cpu") % num_examples(inputs)))
        two, _, _ = self._record(take(three, slice(0, 2)))
        uses, unknown = find_uses(two, *self._record(three)[:2], self._names)
        unknown = uses.sharing(unknown | self._left, self._names)
        uses, wrong = self._verified(three, uses.without(unknown, self._names))
        self._leave(unknown, uses.sharing(wrong, self._names) - unknown, inputs)
        uses = uses.without(self._left, self._names)
        self._check_all(three, uses)
        blocks = merged(self._blocks(three, self._probe(3), uses, apart=True, learned=False)[0])
        uses = uses.with_sizes([BlockSize.of(block) for block in blocks])
        self._sizes = uses.sizes
        return uses

    def _check_all(self, three: Inputs, uses: Uses) -> None:
        """Rules and the general engine together must give what a plain backward pass gives."""
        found = self._pulled(three, uses)
        for block in self._rest_blocks(three, self._probe(3)):
            pieces = block.rows().squeeze(1).split([part.stop - part.start for part in block.parts], -1)
            for part, piece in zip(block.parts, pieces, strict=True):
                found[:, part] = piece
        wrong = self._disagreeing(found, self._pulled_plainly(three))
        if wrong:
            raise NetworkError(
                f"The derivatives of the weights {_listed(sorted(wrong))} differ from those of a plain backward pass. "
                "Use features=JacobianFeatures for this network."
            )

    def _verified(self, three: Inputs, uses: Uses) -> tuple[Uses, set[str]]:
        """Compare Jᵀu of each example with a plain backward pass; weights for which no reading of the axes agrees."""
        expected = self._pulled_plainly(three)
        found = attempt(lambda: self._pulled(three, uses))
        if found is None and self._batched:
            self._batched = False  # a layer has no batching rule: one backward pass a cotangent
            found = attempt(lambda: self._pulled(three, uses))
        if found is None:
            return uses, set(self._names)
        uses, wrong = self._turned(three, uses, found, expected)
        silent = {name for name in uses.merged(self._names) - wrong if not expected[:, self._names[name]].any()}
        if silent:  # no derivative on these examples: either reading would agree
            other = _moved(three)
            expected = self._pulled_plainly(other)
            uses, more = self._turned(other, uses, self._pulled(other, uses), expected)
            wrong |= more | {name for name in silent if not expected[:, self._names[name]].any()}
        return uses, wrong

    def _turned(self, three: Inputs, uses: Uses, found: Tensor, expected: Tensor) -> tuple[Uses, set[str]]:
        """Try the other reading of merged axes where the first one is wrong."""
        wrong = self._disagreeing(found, expected)
        if wrong:
            turned = uses.turned(wrong, self._names)
            again = self._disagreeing(self._pulled(three, turned), expected)
            if again < wrong:
                return turned, again
        return uses, wrong

    def _pulled_plainly(self, three: Inputs) -> Float[Tensor, "3 P"]:
        cotangents = self._probe(3)
        rows = [self.vjp(take(three, slice(i, i + 1)), cotangents[i : i + 1])[:, 0] for i in range(3)]
        return torch.stack(rows)

    def _pulled(self, three: Inputs, uses: Uses) -> Float[Tensor, "3 P"]:
        blocks = merged(self._blocks(three, self._probe(3), uses, learned=False)[0])
        if not blocks:
            return self._flat.new_zeros(3, self.num_weights)
        return Factors(tuple(blocks), self.num_weights).rows().squeeze(1)

    def _disagreeing(
        self, found: Float[Tensor, "n P"], expected: Float[Tensor, "n P"], factor: float = 2e3
    ) -> set[str]:
        """The weights whose derivatives differ by more than rounding (NaN differs)."""
        eps, largest = torch.finfo(expected.dtype).eps, expected.abs().max()
        gaps = (found - expected).abs()
        wrong = set()
        for name, part in self._names.items():
            tolerance = eps * (factor * expected[:, part].abs().max() + 0.01 * factor * largest)
            if not (gaps[:, part] <= tolerance).all():
                wrong.add(name)
        return wrong

    def _probe(self, count: int) -> Float[Tensor, "n K 1"]:
        generator = torch.Generator().manual_seed(1)
        values = torch.randn(count, self.num_outputs, 1, generator=generator, dtype=torch.float64)
        return values.to(self._flat)

    def _leave(self, unknown: set[str], wrong: set[str], inputs: Inputs) -> None:
        """Leave weights without a rule, and those for which the rule was wrong, to the general engine, and say so."""
        if unknown | wrong <= self._left:
            return
        self._left |= unknown | wrong
        self._needs.clear()
        self._tried = {}
        self._learned = {form: uses.without(self._left, self._names) for form, uses in self._learned.items()}
        names = [name for name in self._names if name in self._left]
        state = {**self.network.state(), **self.network.layout.unflatten(self._flat)}
        network = self.network.with_state(state).restricted(names)
        try:
            self.rest = JacobianFeatures(network, inputs, memory_budget=self.memory_budget, must_move=False)
        except NetworkError:  # weights without a derivative, such as those used in torch.no_grad() alone
            return
        self._rest_parts = tuple(self._names[name] for name in names)
        share = network.num_weights / self.num_weights
        rejected = [name for name in names if name in wrong]
        disagrees = (
            f" (for {_listed(rejected)} there is one, but it disagrees with a backward pass)" if rejected else ""
        )
        warn_user(
            f"No layer rule fits the weights {_listed(names)}{disagrees}, {share:.0%} of all: the general engine "
            "(torch.func) takes these, right but slower. CONTRIBUTING.md in the source of dnn2gp shows how to write a "
            "rule for a layer of your own.",
            FallbackWarning,
        )


def _moved(inputs: Inputs) -> Inputs:
    """The same inputs with noise on what is not counted or named by integers."""
    generator = torch.Generator().manual_seed(3)

    def moved(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        return leaf.detach() + noise.to(leaf)

    return map_inputs(moved, inputs)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
