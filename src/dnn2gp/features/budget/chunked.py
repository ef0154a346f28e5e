"""Examples in chunks within the memory budget: the memory that work with their factors needs is measured beforehand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.budget.peak import MORE, Peak
from dnn2gp.features.budget.plan import MADE, MemoryTrial, Work
from dnn2gp.features.checks import Cotangents
from dnn2gp.features.factors import Factors
from dnn2gp.features.knowledge import Knowledge
from dnn2gp.network.inputs import (
    Inputs,
    differentiable,
    example_of,
    first_few,
    in_parts,
    leaves,
    most_at_once,
    num_examples,
    take,
)
from dnn2gp.support.allocator import give_back, sparing
from dnn2gp.support.memory import SMALL, default_budget, even_chunks, held, require, room
from dnn2gp.support.progress import track

# The largest number of examples in a chunk.
_CHUNK = 256
# Memory is measured with at most _ROWS_MEASURED rows per example, and with so few that the lower bound for the factors
# of one example is at most 1 / _TRIED of the budget: those of five examples are held while they are used, in float64,
# and real factors are up to three times as large as the lower bound.
_ROWS_MEASURED = 32
_TRIED = 60
# The share of the budget that a trial may hold until the next one: several uses of it are often measured in a row.
_LIGHT = 64
FEWER = (
    "Pass fewer inputs at a time, freeze layers that need no uncertainty (requires_grad_(False)), or name those "
    "that do (subset=)."
)


@dataclass(frozen=True)
class Measured:
    """The memory of work: the peak for n examples, and the bytes per example of its result, if that is factors."""

    need: Peak
    kept: int


class Chunked(ABC):
    """Whatever has factors for a few examples at a time (`factors`)."""

    num_weights: int
    num_outputs: int
    anchor: Float[Tensor, " P"]
    memory_budget: int | None
    knowledge: Knowledge

    fewest: int = 1
    """The smallest number of examples that are computed at once, even if fewer are requested."""

    @abstractmethod
    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None, *, apart: bool = False) -> Factors:
        """Uᵀ φ_w(x)ᵀ of each example by blocks, with its cotangents U (default: the identity, so that it is φᵀ).

        U (N × Q × R) may be a function of the outputs, such as a likelihood's `noise_precision_root`: it is then called
        in the forward pass, which is needed anyway. `apart` asks for the inputs and output gradients of each layer
        instead of their sums over positions.
        """

    def least_bytes(self, inputs: Inputs, num_rows: int) -> int:
        """A lower bound for the factors of one example with R rows, to reject work that cannot fit before it starts."""
        return 0

    def operations(self, inputs: Inputs, num_rows: int) -> float:
        """Multiplications and additions that make the factors of one example with R rows; here they do not count."""
        return 0.0

    def budget(self) -> int:
        """The memory budget in bytes: the user's, less what is held already, or half of what is free now."""
        return default_budget() if self.memory_budget is None else max(0, self.memory_budget - held())

    def chunk(
        self, inputs: Inputs, num_rows: int | None = None, work: Work = MADE, *, fixed: int = 0, extra: int = 0
    ) -> int:
        """Examples to process at a time within the budget, given `fixed` bytes and `extra` bytes per example."""
        rows, budget = self.num_outputs if num_rows is None else num_rows, self.budget()
        what = f"{work.name}, {'a single example' if self.fewest == 1 else f'{self.fewest} examples'} at a time,"
        what = f"{what} with the result" if fixed else what
        least = fixed + self.fewest * (extra + self.least_bytes(inputs, rows))
        require(least, budget, what, FEWER)  # before anything is tried
        need = self.need(inputs, rows, work).plus(fixed, extra)
        require(need(self.fewest), budget, what, FEWER)
        give_back(budget)
        return max(1, min(most_at_once(inputs), need.most(room(budget, fixed)), self.streamed_chunk(inputs, rows)))

    def need(self, inputs: Inputs, num_rows: int, work: Work = MADE) -> Peak:
        """The memory that n examples need while their factors with R rows are made and used."""
        return self.measured(inputs, num_rows, work).need

    def measured(self, inputs: Inputs, num_rows: int, work: Work = MADE) -> Measured:
        """The memory of work on factors with R rows, measured on two and three examples."""
        tried = self.rows_tried(inputs, num_rows)
        key = "memory", self.name, self.kind(inputs), num_rows, tried, work.name, work.key
        return self.knowledge.find(key, lambda: self._measure(inputs, num_rows, tried, work))

    def rows_tried(self, inputs: Inputs, num_rows: int) -> int:
        """The rows per example with which memory is measured: all R, unless that takes long or needs much memory."""
        each = max(1.0, self.least_bytes(inputs, num_rows) / num_rows)
        most = max(SMALL, room(self.budget())) / (_TRIED * each)
        return min(num_rows, _ROWS_MEASURED, max(1, int(most)))

    @staticmethod
    def kind(inputs: Inputs) -> tuple[object, ...]:
        """What inputs must share for their examples to need the same memory."""
        return differentiable(inputs), *form(inputs)

    @property
    def name(self) -> str:
        """Distinguishes features that share their knowledge."""
        return type(self).__name__

    def trial(self, inputs: Inputs, num_rows: int, *, apart: bool = False) -> MemoryTrial:
        """The factors of two and three examples."""
        key = self.name, self.kind(inputs), num_rows, apart
        found = self.knowledge.recall(key)
        if found is None:
            found = self._trial(inputs, num_rows, apart)
            light = found.bytes[1] <= self.budget() // _LIGHT and not differentiable(inputs)
            self.knowledge.remember(key, found if light else None)
        return found

    @torch.inference_mode(False)
    def _measure(self, inputs: Inputs, num_rows: int, tried: int, work: Work) -> Measured:
        trial = self.trial(inputs, tried, apart=work.apart)
        need = trial.need(work.use)
        result = work.use(trial.factors[MORE])
        kept = result.bytes_per_example(num_rows) if isinstance(result, Factors) else 0
        return Measured(need if tried == num_rows else need.times(num_rows / tried), kept)  # more than each row adds

    def _trial(self, inputs: Inputs, num_rows: int, apart: bool) -> MemoryTrial:
        three = first_few(inputs, MORE)

        def make(count: int) -> Factors:
            some = take(three, torch.arange(count, device="cpu"))
            return self.factors(some, self.anchor.new_ones(count, self.num_outputs, num_rows), apart=apart)

        return MemoryTrial.of(make)

    def fast_chunk(self, inputs: Inputs, num_rows: int) -> int:
        """The largest number of examples computed at once: more would not be faster, and would overflow the caches."""
        return _CHUNK

    def streamed_chunk(self, inputs: Inputs, num_rows: int) -> int:
        """The same for a computation that goes through the examples once, without pairing them with others."""
        return self.fast_chunk(inputs, num_rows)

    def _factors(
        self, inputs: Inputs, work: Work, cotangents: Cotangents | None = None, *, fixed: int = 0, extra: int = 0
    ) -> Iterator[tuple[slice, Factors]]:
        given = isinstance(cotangents, Tensor)
        size = self.chunk(inputs, cotangents.shape[2] if given else None, work, fixed=fixed, extra=extra)
        parts = list(even_chunks(num_examples(inputs), size))
        for part, some in sparing(track(in_parts(inputs, parts), work.name, len(parts)), self.budget()):
            own = cotangents[part] if given else cotangents
            factors = self.factors(some, own, apart=work.apart)
            del some
            give_back(self.budget())  # the memory that computing them needed
            yield part, factors
            del factors

    def _used(
        self, inputs: Inputs, work: Work, cotangents: Cotangents | None = None, *, fixed: int = 0, extra: int = 0
    ) -> Iterator[Any]:
        """The result of the work for each chunk, whose factors are freed before the next one."""
        for _, factors in self._factors(inputs, work, cotangents, fixed=fixed, extra=extra):
            result = work.use(factors)
            del factors
            yield result
            del result


def joined(parts: Iterable[Tensor], count: int) -> Tensor:
    """The results of all chunks of `count` examples, each copied to its place; a single one is not copied.

    If all were kept until the end, they would lie between what chunks allocate and free, and malloc could not use that
    memory again: the process would grow with every chunk.
    """
    result: Tensor | None = None
    tracked, start = [], 0
    for part in parts:
        if len(part) == count:
            return part
        if tracked or (result is None and part.requires_grad):
            tracked.append(part)
            continue
        result = part.new_empty(count, *part.shape[1:]) if result is None else result
        result[start : start + len(part)] = part
        start += len(part)
        del part
    return torch.cat(tracked) if result is None else result


def form(inputs: Inputs) -> tuple[tuple[torch.Size, torch.dtype], ...]:
    """The shape and dtype of one example of each tensor: what a network may treat differently."""
    return tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves(example_of(inputs)))
