"""Learning where a network uses its weights, from a few examples, with every rule checked against autograd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.engines.layerwise.places import storage_pointer
from dnn2gp.features.engines.layerwise.recording import Recording, merged
from dnn2gp.features.engines.layerwise.uses import Uses, find_uses
from dnn2gp.features.engines.plain_passes import attempt, pulled
from dnn2gp.features.factors import Factors
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, detached, first_few, map_inputs, take

_COTANGENTS = 2


@dataclass(frozen=True)
class Lesson:
    """What a few examples have shown."""

    uses: Uses
    unknown: set[str]
    """Weights without a rule."""
    wrong: set[str]
    """Weights whose rule disagrees with a backward pass."""


class Learner:
    """Examines three examples of one shape. Nothing that it finds depends on the weights."""

    def __init__(self, network: Network, anchor: Float[Tensor, " P"], inputs: Inputs) -> None:
        """The first three of `inputs`, repeated if there are fewer."""
        self._network, self._anchor, self._ranges = network, anchor, network.layout.ranges
        self.three = detached(first_few(inputs, 3))

    def learn(self) -> Lesson:
        """Find the uses of the weights and where the examples are in them."""
        two = Recording.of(self._network, self._anchor, take(self.three, slice(0, 2)))
        three = Recording.of(self._network, self._anchor, self.three)
        uses, unknown = find_uses(two.recorder, three.recorder, three.outputs, self._ranges)
        unknown = uses.sharing(unknown, self._ranges)
        uses, wrong = self._verified(uses.without(unknown, self._ranges))
        wrong = uses.sharing(wrong, self._ranges) - unknown
        return Lesson(self._with_activations(uses.without(wrong, self._ranges)), unknown, wrong)

    def wrong(self, found: Float[Tensor, "6 P"]) -> set[str]:
        """The weights for which Jᵀu of the three examples differs from plain backward passes."""
        return disagreeing(found, self._pulled_plainly(self.three), self._ranges)

    def pulled(self, uses: Uses) -> Float[Tensor, "6 P"]:
        """Jᵀu of each example and cotangent by the rules; zero for weights that they leave out."""
        return self._pulled(self.three, uses)

    def cotangents(self) -> Float[Tensor, "3 K 2"]:
        """u: fixed random numbers, two for each example, so that a wrong batching rule shows."""
        generator = torch.Generator().manual_seed(1)
        values = torch.randn(3, self._network.num_outputs, _COTANGENTS, generator=generator, dtype=torch.float64)
        return values.to(self._anchor)

    def _verified(self, uses: Uses) -> tuple[Uses, set[str]]:
        """Compare Jᵀu of each example with a plain backward pass; weights for which no reading of the axes agrees."""
        expected = self._pulled_plainly(self.three)
        found = attempt(lambda: self.pulled(uses))
        if found is None:  # a layer has no batching rule: one backward pass per cotangent
            uses = replace(uses, batched=False)
            found = attempt(lambda: self.pulled(uses))
        if found is None:
            return uses, set(self._ranges)
        uses, wrong = self._turned(self.three, uses, found, expected)
        again = self._pulled(self.three, uses, self._network.num_outputs)  # uses may have another form for many rows
        wrong |= disagreeing(again, expected, self._ranges)
        unclear = uses.merged(self._ranges) - wrong
        silent = {name for name in unclear if not expected[:, self._ranges[name]].any()}
        if silent:  # no derivative on these examples: either reading would agree
            other = _moved(self.three)
            expected = self._pulled_plainly(other)
            uses, more = self._turned(other, uses, self._pulled(other, uses), expected)
            wrong |= more | {name for name in silent if not expected[:, self._ranges[name]].any()}
        return uses, wrong

    def _turned(self, three: Inputs, uses: Uses, found: Tensor, expected: Tensor) -> tuple[Uses, set[str]]:
        """Try the other reading of merged axes where the first one is wrong."""
        wrong = disagreeing(found, expected, self._ranges)
        if wrong:
            turned = uses.turned(wrong, self._ranges)
            again = disagreeing(self._pulled(three, turned), expected, self._ranges)
            if again < wrong:
                return turned, again
        return uses, wrong

    def _pulled_plainly(self, three: Inputs) -> Float[Tensor, "6 P"]:
        """Jᵀu of each example and cotangent by plain backward passes."""
        u = self.cotangents()
        examples = (slice(index, index + 1) for index in range(3))
        return torch.cat([pulled(self._network, self._anchor, take(three, one), u[one]).T for one in examples])

    def _pulled(self, three: Inputs, uses: Uses, rows: int | None = None) -> Float[Tensor, "6 P"]:
        if not uses.axes:
            return self._anchor.new_zeros(3 * _COTANGENTS, len(self._anchor))
        columns = self.cotangents().permute(2, 0, 1)
        blocks = Recording.of(self._network, self._anchor, three).blocks(uses, columns, rows=rows)
        return Factors(tuple(merged(blocks)), len(self._anchor)).rows().flatten(0, 1)

    def _with_activations(self, uses: Uses) -> Uses:
        """The uses, with the amount of memory that a backward pass of one example saves."""
        one, sizes = take(self.three, slice(0, 1)), [0]
        weights = self._anchor.detach().requires_grad_(True)

        def count(tensor: Tensor) -> Tensor:
            if storage_pointer(tensor) != storage_pointer(weights):
                sizes.append(tensor.numel())
            return tensor

        def run() -> Tensor:
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor), torch.enable_grad():
                return self._network(weights, one)

        attempt(run)
        return replace(uses, saved=sum(sizes), largest=max(sizes))


def disagreeing(
    found: Float[Tensor, "n P"], expected: Float[Tensor, "n P"], ranges: Mapping[str, slice], factor: float = 2e3
) -> set[str]:
    """The weights whose derivatives differ by more than rounding (NaN differs)."""
    eps, largest = torch.finfo(expected.dtype).eps, expected.abs().max()
    gaps = (found - expected).abs()
    wrong = set()
    for name, part in ranges.items():
        tolerance = eps * (factor * expected[:, part].abs().max() + 0.01 * factor * largest)
        if not (gaps[:, part] <= tolerance).all():
            wrong.add(name)
    return wrong


def _moved(inputs: Inputs) -> Inputs:
    """The same inputs with noise on those that are floating-point numbers."""
    generator = torch.Generator().manual_seed(3)

    def moved(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        return leaf.detach() + noise.to(leaf)

    return map_inputs(moved, inputs)
