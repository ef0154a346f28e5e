"""Examples in chunks within the memory budget: what work with their factors needs is measured before it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.budget.footprint import Footprint
from dnn2gp.features.budget.peak import Peak, peak_of
from dnn2gp.features.budget.work import MADE, MemoryTrial, Work
from dnn2gp.features.cotangents import Cotangents
from dnn2gp.features.factors import Factors
from dnn2gp.features.knowledge import Knowledge
from dnn2gp.network.inputs import Inputs, differentiable, leaves, num_examples, take
from dnn2gp.support.memory import chunks, default_budget, require, room
from dnn2gp.support.progress import track

# The most examples of a chunk.
_CHUNK = 200
# The most rows of an example with which memory is measured, and the share of the budget that their factors may have:
# two and three examples, and as much again while they are made.
_ROWS_MEASURED = 32
_TRIED = 10
FEWER = (
    "Take fewer inputs at a time, freeze layers that need no uncertainty (requires_grad_(False)), or name those that "
    "do (subset=)."
)


class Chunked(ABC):
    """What has factors for a few examples at a time (`factors`), and says what these hold (`footprint`)."""

    num_weights: int
    num_outputs: int
    anchor: Float[Tensor, " P"]
    memory_budget: int | None
    knowledge: Knowledge

    fewest: int = 1
    """The examples that are made at the least, whatever is asked for."""

    @abstractmethod
    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None, *, apart: bool = False) -> Factors:
        """Uᵀ φ_w(x)ᵀ of each example by blocks, U its cotangents (default: the identity, so that it is φᵀ).

        U (N × Q × R) may be a function of the outputs, such as a likelihood's `noise_precision_root`: it is then called
        in the forward pass that is made anyway. `apart`: the inputs and output gradients of each layer are wanted, and
        not the sums over positions that they make.
        """

    @abstractmethod
    def footprint(self, inputs: Inputs, num_rows: int) -> Footprint:
        """What the factors of one of these examples with R rows hold."""

    def budget(self) -> int:
        """The memory budget in bytes: the user's, or half of what is free now."""
        return default_budget() if self.memory_budget is None else self.memory_budget

    def chunk(
        self, inputs: Inputs, num_rows: int | None = None, work: Work = MADE, *, fixed: int = 0, extra: int = 0
    ) -> int:
        """Examples at a time for this work within the budget, where `fixed` bytes are held besides, and `extra` for
        each example."""
        rows, budget = self.num_outputs if num_rows is None else num_rows, self.budget()
        what = f"{work.name}, {'a single example' if self.fewest == 1 else f'{self.fewest} examples'} at a time,"
        what = f"{what} with the result" if fixed else what
        least = fixed + self.fewest * (extra + self.footprint(inputs, rows).factors)
        require(least, budget, what, FEWER)  # before anything is tried
        need = self.need(inputs, rows, work).plus(fixed, extra)
        require(need(self.fewest), budget, what, FEWER)
        return max(1, min(num_examples(inputs), need.most(room(budget)), self.fast_chunk(inputs, rows)))

    def need(self, inputs: Inputs, num_rows: int, work: Work = MADE) -> Peak:
        """The memory that factors with R rows need while they are made and used, measured on a few examples."""
        each = max(1.0, self.footprint(inputs, num_rows).factors / num_rows)
        tried = min(num_rows, _ROWS_MEASURED, max(1, int(self.budget() / (_TRIED * each))))
        key = "memory", self.name, self.kind(inputs), num_rows, tried, work.name, work.key
        return self.knowledge.find(key, lambda: self._measured(inputs, num_rows, tried, work))

    @staticmethod
    def kind(inputs: Inputs) -> tuple[object, ...]:
        """What inputs must share for their examples to need the same memory."""
        return differentiable(inputs), *form(inputs)

    @property
    def name(self) -> str:
        """What tells features apart that share their knowledge."""
        return type(self).__name__

    @torch.inference_mode(False)
    def _measured(self, inputs: Inputs, num_rows: int, rows: int, work: Work) -> Peak:
        trial = self._trial(inputs, rows, work.apart)
        made = trial.made.or_held(trial.bytes, peak_of(lambda count: work.use(trial.factors[count])))
        return made if rows == num_rows else made.times(num_rows / rows)  # more than each row adds

    def _trial(self, inputs: Inputs, num_rows: int, apart: bool) -> MemoryTrial:
        """The factors of a few examples."""

        def make(count: int) -> Factors:
            some = take(inputs, torch.arange(count, device="cpu") % num_examples(inputs))
            return self.factors(some, self.anchor.new_ones(count, self.num_outputs, num_rows), apart=apart)

        return MemoryTrial.of(make)

    def fast_chunk(self, inputs: Inputs, num_rows: int) -> int:
        """The most examples that are made at once: beyond it nothing gets faster, and caches overflow."""
        return _CHUNK

    def _factors(
        self, inputs: Inputs, work: Work, cotangents: Cotangents | None = None, *, fixed: int = 0, extra: int = 0
    ) -> Iterator[tuple[slice, Factors]]:
        given = isinstance(cotangents, Tensor)
        size = self.chunk(inputs, cotangents.shape[2] if given else None, work, fixed=fixed, extra=extra)
        for part in track(list(chunks(num_examples(inputs), size)), work.name):
            own = cotangents[part] if given else cotangents
            yield part, self.factors(take(inputs, part), own, apart=work.apart)

    def _used(
        self, inputs: Inputs, work: Work, cotangents: Cotangents | None = None, *, fixed: int = 0, extra: int = 0
    ) -> Iterator[Any]:
        """What the work makes of each chunk's factors, which are then given up."""
        for _, factors in self._factors(inputs, work, cotangents, fixed=fixed, extra=extra):
            result = work.use(factors)
            del factors
            yield result
            del result


def form(inputs: Inputs) -> tuple[tuple[torch.Size, torch.dtype], ...]:
    """The shape and dtype of one example of each tensor: what a network may treat differently."""
    return tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves(inputs))
