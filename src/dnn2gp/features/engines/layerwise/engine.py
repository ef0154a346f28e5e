"""The layerwise engine: from one forward pass and R output cotangents, every layer's inputs A and output gradients G.

Nothing here has R · P numbers per example: a layer's block is held as the factors that its rule gives (`rules/`), and
every product of `FeatureMap` is a sum over the layers. Weights that no rule covers are left to the general engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks import Block, Rows
from dnn2gp.features.budget.chunked import form
from dnn2gp.features.budget.plan import BlockSize, MemoryTrial
from dnn2gp.features.checks import Cotangents, identity, resolved
from dnn2gp.features.engines.layerwise.learning import Learner, disagreeing
from dnn2gp.features.engines.layerwise.recording import Recording, merged
from dnn2gp.features.engines.layerwise.uses import Uses
from dnn2gp.features.engines.network_features import NetworkFeatures
from dnn2gp.features.engines.plain_passes import pull
from dnn2gp.features.engines.torch_func import JacobianFeatures
from dnn2gp.features.factors import Factors
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, all_finite, num_examples, take
from dnn2gp.support.errors import FallbackWarning, NetworkError, NotFiniteError, warn_user

# The most entries in the temporary tensors of a chunk. What a chunk allocates is freed together; if that is more than
# about 64 MiB, malloc gives it back to the system and the next chunk pays for page faults.
_NUMBERS = 9 << 20
# The fewest examples that are worth a pass, however large they are.
_FEW = 8

_measuring: ContextVar[bool] = ContextVar("dnn2gp_measuring", default=False)
"""Whether factors are made only to measure their memory."""


@final
class LayerwiseFeatures(NetworkFeatures):
    """J_w(x) by the factors of each layer: exact for every network, with the general engine for what has no rule."""

    fewest = 2

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
        self._first = self.uses(inputs)

    @property
    def rest(self) -> JacobianFeatures | None:
        """The general engine, for the weights that no rule covers on inputs such as those of the construction."""
        return self._general(self._first)

    @torch.inference_mode(False)
    def uses(self, inputs: Inputs) -> Uses:
        """What is known about inputs of this form; learned when they are first seen."""
        return self.knowledge.find(("uses", form(inputs)), lambda: self._learn(inputs))

    @torch.inference_mode(False)
    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None, *, apart: bool = False) -> Factors:
        """UᵀJ by the layers' blocks.

        A single example is computed twice: with a batch of one (expand, squeeze) a network may not show where it is.
        """
        if num_examples(inputs) == 1:
            columns = cotangents.expand(2, -1, -1) if isinstance(cotangents, Tensor) else cotangents
            return self.factors(
                take(inputs, torch.zeros(2, dtype=torch.long, device="cpu")), columns, apart=apart
            ).take(slice(0, 1))
        uses = self.uses(inputs)
        blocks = self._ruled_blocks(inputs, cotangents, uses, apart=apart)[1] if uses.axes else []
        return Factors((*blocks, *self._general_blocks(inputs, cotangents, uses)), self.num_weights)

    @torch.inference_mode(False)
    def outputs_and_factors(self, inputs: Inputs) -> tuple[Float[Tensor, "N K"], Factors]:
        if num_examples(inputs) == 1:  # see `factors`
            outputs, factors = self.outputs_and_factors(take(inputs, torch.zeros(2, dtype=torch.long, device="cpu")))
            return outputs[:1], factors.take(slice(0, 1))
        uses = self.uses(inputs)
        if not uses.axes:
            return super().outputs_and_factors(inputs)
        outputs, blocks = self._ruled_blocks(inputs, None, uses, apart=False)
        return outputs, Factors((*blocks, *self._general_blocks(inputs, None, uses)), self.num_weights)

    def parts(self, inputs: Inputs) -> list[slice]:
        uses = self.uses(inputs)
        own = [part for size in uses.sizes for part in size.parts]
        return own if self._general(uses) is None else own + self._ranges(uses.left)

    def least_bytes(self, inputs: Inputs, num_rows: int) -> int:
        uses, general = self.uses(inputs), self._general(self.uses(inputs))
        own = self.anchor.element_size() * sum(block.least(num_rows) for block in uses.sizes)
        return own + (0 if general is None else general.least_bytes(inputs, num_rows))

    def operations(self, inputs: Inputs, num_rows: int) -> float:
        uses, general = self.uses(inputs), self._general(self.uses(inputs))
        own = sum(block.operations(num_rows) for block in uses.sizes) + 6.0 * num_rows * uses.saved
        return own + (0 if general is None else general.operations(inputs, num_rows))

    def _trial(self, inputs: Inputs, num_rows: int, apart: bool) -> MemoryTrial:
        self.uses(inputs)  # learned now, so that the measurement does not include it
        with self.unchecked():
            return self.checked(super()._trial(inputs, num_rows, apart))

    def checked(self, trial: MemoryTrial) -> MemoryTrial:
        """With a check: a vector of all weights while factors are made, then their sum, and three vectors."""
        size = self.anchor.nbytes
        return trial.plus(size).then(lambda factors: factors.pull(factors.ones(1)), 3 * size)

    @contextmanager
    def unchecked(self) -> Iterator[None]:
        token = _measuring.set(True)
        try:
            yield
        finally:
            _measuring.reset(token)

    def fast_chunk(self, inputs: Inputs, num_rows: int) -> int:
        """Bounded by the gradients of one activation for all rows, and by the patches of one convolution."""
        uses = self.uses(inputs)
        patches = max((size.shared(num_rows) for size in uses.sizes), default=0)
        numbers = max(1, num_rows * uses.largest, patches)
        return min(super().fast_chunk(inputs, num_rows), max(_FEW, _NUMBERS // numbers))

    def streamed_chunk(self, inputs: Inputs, num_rows: int) -> int:
        """Bounded by the inputs of all layers, patches included, and by half of what the forward pass saves."""
        uses = self.uses(inputs)
        numbers = max(1, sum(size.shared(num_rows) for size in uses.sizes), uses.saved // 2)
        return min(self.fast_chunk(inputs, num_rows), max(_FEW, _NUMBERS // numbers))

    def pair_operations(self, inputs: Inputs, left_rows: int, right_rows: int, *, trace: bool = False) -> float:
        uses = self.uses(inputs)
        own = sum(block.pair_operations(left_rows, right_rows, trace=trace) for block in uses.sizes)
        general = self._general(uses)
        return own + (0 if general is None else general.pair_operations(inputs, left_rows, right_rows, trace=trace))

    def kronecker_numbers(self, inputs: Inputs) -> int:
        """i² + o² for each layer; p² where there are no factors."""
        uses = self.uses(inputs)
        own, general = sum(size.kronecker_numbers() for size in uses.sizes), self._general(uses)
        layers = [] if general is None else [self._ranges(names) for names in self._layers_of(uses.left)]
        return own + sum(sum(part.stop - part.start for part in parts) ** 2 for parts in layers)

    def _ruled_blocks(
        self, inputs: Inputs, cotangents: Cotangents | None, uses: Uses, *, apart: bool
    ) -> tuple[Float[Tensor, "N K"], Sequence[Block]]:
        """The outputs, and the blocks of weights with rules; some chunks are compared with a plain backward pass."""
        recording = Recording.of(self.network, self.anchor, inputs)
        recording.matched(uses)
        with torch.no_grad():
            columns = resolved(identity if cotangents is None else cotangents, recording.outputs).permute(2, 0, 1)
            due = recording.recorder.rearranges or (
                not _measuring.get() and self.knowledge.check_due(num_examples(inputs))
            )
            check = _sum_of_rows(recording, columns) if due else None
        outputs = recording.outputs if recording.graph else recording.outputs.detach()
        found = recording.blocks(uses, columns, apart=apart)
        del recording
        blocks = merged(found)
        del found
        if check is not None:
            self._check_sum(blocks, uses, *check)
        return outputs, blocks

    def _check_sum(
        self, blocks: Sequence[Block], uses: Uses, mixing: Float[Tensor, "N R 1"], expected: Float[Tensor, " P"]
    ) -> None:
        """Check that each example is still at its place, even if the network selects or sorts by value."""
        if not all_finite(expected):
            raise NotFiniteError(
                "The derivatives of the network at some of these inputs are not finite. Look for operations with an "
                "infinite slope, such as sqrt or norm at 0, and for huge inputs or weights."
            )
        found = Factors(tuple(blocks), self.num_weights).pull(mixing.detach())[:, 0]
        wrong = disagreeing(found.detach()[None], expected[None], self.network.layout.ranges, 1e4)
        if wrong - set(uses.left):
            raise NetworkError(
                "network: it treats these examples differently from those it was probed with: it selects or sorts "
                "them by their values, or uses weights in another way. Use features=JacobianFeatures for this "
                "network."
            )

    def _general_blocks(self, inputs: Inputs, cotangents: Cotangents | None, uses: Uses) -> list[Block]:
        """The blocks of weights without rules, one for each layer."""
        general = self._general(uses)
        if general is None:
            return []
        layers = [tuple(self._ranges(names)) for names in self._layers_of(uses.left)]
        sizes = [sum(part.stop - part.start for part in parts) for parts in layers]
        rows = general.factors(inputs, cotangents).rows().split(sizes, -1)
        return [Rows(own, parts) for own, parts in zip(rows, layers, strict=True)]

    def _general(self, uses: Uses) -> JacobianFeatures | None:
        """The general engine at these weights, for those that the rules leave to it; None if nothing is left."""
        known: JacobianFeatures | None = self.knowledge.get(("general", uses.left)) if uses.left else None
        if known is None:
            return None
        tensors = {**self.network.state(), **self.network.layout.unflatten(self.anchor)}
        network = known.network.with_state(tensors)
        return known.at(network.weights, network)

    def _learn(self, inputs: Inputs) -> Uses:
        """Find the uses of the weights; those that rules do not cover go to the general engine, with a warning."""
        learner = Learner(self.network, self.anchor, inputs)
        lesson = learner.learn()
        left = [name for own in self._layers_of(lesson.unknown | lesson.wrong) for name in own]
        uses = replace(lesson.uses, left=tuple(left))
        if uses.left and self.knowledge.find(("general", uses.left), lambda: self._new_general(uses.left, inputs)):
            self._warn(uses.left, lesson.wrong)
        self._check_all(learner, uses)
        if not uses.axes:
            return uses
        recording = Recording.of(self.network, self.anchor, learner.three)
        blocks = merged(recording.blocks(uses, learner.cotangents().permute(2, 0, 1), apart=True))
        return replace(uses, sizes=tuple(BlockSize.of(block) for block in blocks))

    def _new_general(self, names: Sequence[str], inputs: Inputs) -> JacobianFeatures | None:
        network = self.network.restricted(list(names))
        try:
            return JacobianFeatures(network, inputs, memory_budget=self.memory_budget, must_move=False)
        except NetworkError:  # weights without a derivative, such as those used in torch.no_grad() alone
            return None

    def _check_all(self, learner: Learner, uses: Uses) -> None:
        """Rules and the general engine together must give what a plain backward pass gives."""
        found = learner.pulled(uses)
        for block in self._general_blocks(learner.three, learner.cotangents(), uses):
            pieces = block.rows().flatten(0, 1).split([part.stop - part.start for part in block.parts], -1)
            for part, piece in zip(block.parts, pieces, strict=True):
                found[:, part] = piece
        wrong = learner.wrong(found)
        if wrong:
            raise NetworkError(
                f"network: the derivatives of the weights {_listed(sorted(wrong))} differ from those of a plain "
                "backward pass. Use features=JacobianFeatures for this network."
            )

    def _warn(self, names: Sequence[str], wrong: set[str]) -> None:
        """Warn which weights fall back, once."""
        said = {name for uses in self.knowledge.known("uses") for name in uses.left}
        if said.issuperset(names):
            return
        ranges, rejected = self._ranges(names), [name for name in names if name in wrong]
        share = sum(part.stop - part.start for part in ranges) / self.num_weights
        disagrees = f" (the rule for {_listed(rejected)} disagrees with a backward pass)" if rejected else ""
        warn_user(
            f"No layer rule covers the weights {_listed(names)}{disagrees}, {share:.0%} of all. They are left to the "
            "general engine (torch.func), which gives the same results but is slower. CONTRIBUTING.md in the source "
            "of dnn2gp shows how to write a rule for your own layer.",
            FallbackWarning,
        )

    def _layers_of(self, names: Collection[str]) -> list[list[str]]:
        """These weights, grouped by the layers that own them."""
        layout = self.network.layout
        groups = ([layout.names[position] for position in own] for own in layout.layers.values())
        return [kept for group in groups if (kept := [name for name in group if name in names])]

    def _ranges(self, names: Sequence[str]) -> list[slice]:
        ranges = self.network.layout.ranges
        return [ranges[name] for name in names]


def _sum_of_rows(
    recording: Recording, columns: Float[Tensor, "R N K"]
) -> tuple[Float[Tensor, "N R 1"], Float[Tensor, " P"]]:
    """Random numbers v, and Jᵀ(U v) by a plain backward pass: what the blocks of these examples must give too."""
    generator = torch.Generator().manual_seed(2)
    mixing = torch.randn(columns.shape[1], len(columns), 1, generator=generator, dtype=torch.float64).to(columns)
    mixed = (columns.permute(1, 2, 0) @ mixing).squeeze(-1)
    return mixing, pull(recording.outputs, recording.flat, mixed)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
