"""What is done with the factors of a chunk of examples, so that its memory can be measured before it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnn2gp.features.budget.peak import FEW, MORE, Peak, peak_of
from dnn2gp.features.factors import Factors


@dataclass(frozen=True)
class Work:
    """A use of factors; `key` distinguishes uses of the same name that need different amounts of memory."""

    name: str
    use: Callable[[Factors], Any]
    key: tuple[object, ...] = ()
    apart: bool = False
    """Whether it needs the inputs and output gradients of each layer instead of their sums over positions."""


@dataclass(frozen=True, eq=False)
class MemoryTrial:
    """The factors of two and of three examples, and the memory that n examples need while theirs are made."""

    factors: dict[int, Factors]
    made: Peak

    @staticmethod
    def of(make: Callable[[int], Factors]) -> MemoryTrial:
        """Make them, and watch."""
        factors: dict[int, Factors] = {}

        def watched(count: int) -> Factors:
            factors[count] = make(count)
            return factors[count]

        return MemoryTrial(factors, made=peak_of(watched))

    def plus(self, fixed: int) -> MemoryTrial:
        """With `fixed` more bytes while they are made."""
        return MemoryTrial(self.factors, self.made.plus(fixed))

    def then(self, use: Callable[[Factors], object], fixed: int = 0) -> MemoryTrial:
        """With a use that is always made of them, and `fixed` more bytes during it."""
        return MemoryTrial(self.factors, self.need(use, fixed))

    def need(self, use: Callable[[Factors], object], fixed: int = 0) -> Peak:
        """The memory that n examples need while their factors are made, and then used."""
        used = peak_of(lambda count: use(self.factors[count])).plus(fixed)
        return self.made.or_held(self.bytes, used)

    @property
    def bytes(self) -> tuple[int, int]:
        """The size of the factors of two and of three examples."""
        few, more = (self.factors[count].bytes for count in (FEW, MORE))
        return few, more


MADE = Work("The Jacobian", Factors.compact)
