"""Planning a product before it is computed: the work on the factors of a chunk, the memory it needs, and the chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnn2gp.features.blocks import Block, Lookup, Outer
from dnn2gp.features.budget.peak import FEW, MORE, Peak, peak_of
from dnn2gp.features.factors import Factors
from dnn2gp.support.memory import readable


@dataclass(frozen=True)
class BlockSize:
    """The sizes of a block for one example: `a` numbers once, `g` numbers for each row, `p` weights."""

    parts: tuple[slice, ...]
    a: int
    g: int
    p: int
    positions: int
    shape: tuple[int, int] | None
    """(o, i) of an outer product."""
    table: bool = False

    @staticmethod
    def of(block: Block) -> BlockSize:
        """From the block of a few examples."""
        n, R = block.num_examples, block.num_rows
        if isinstance(block, Outer):
            (_, i, L), o = block.A.shape, block.G.shape[2]
            return BlockSize(block.parts, i * L, o * L, block.size, L, (o, i))
        held = sum(tensor.numel() for tensor in block.tensors()) // (n * R)
        return BlockSize(block.parts, 0, held, block.size, 1, None, isinstance(block, Lookup))

    def least(self, rows: int) -> int:
        """The smallest number of entries of the block in any form."""
        return min(rows * self.p, self.a + rows * self.g)

    def shared(self, rows: int) -> int:
        """The entries that all rows share: none if the sums over positions take less memory, and are formed at once."""
        return 0 if self.positions > 1 and rows * self.p <= self.a + rows * self.g else self.a

    def operations(self, rows: int) -> float:
        """Operations that bring the factors into the form in which they are kept (see `Outer.compact`)."""
        return 2.0 * rows * self.p * self.positions if self._explicit(rows) else 0.0

    def pair_operations(self, left: int, right: int, *, trace: bool) -> float:
        """Operations of the product of two examples: all pairs of rows, or (`trace`) only equal ones."""
        pairs = left if trace else left * right
        if self.shape is None or self._explicit(left):
            return 2.0 * pairs * self.p
        o, i = self.shape
        together = self.positions**2 * (o * pairs + i)
        return 2.0 * min(together, pairs * o * i) if self.positions > 1 else 2.0 * together

    def kronecker_numbers(self) -> int:
        """Numbers of the Kronecker factors."""
        if self.table:
            return self.p  # a table's factors are counts and a small matrix
        return self.p**2 if self.shape is None else self.shape[0] ** 2 + self.shape[1] ** 2

    def _explicit(self, rows: int) -> bool:
        if self.shape is None:
            return False
        o, i = self.shape
        return self.positions > 1 and rows * o * i <= 2 * (self.a + rows * self.g)


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
        """Followed by a use that always occurs, with `fixed` more bytes during it."""
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


@dataclass(frozen=True)
class Plan:
    """The cost of a product: examples at a time, peak memory (including the result), and operations."""

    work: str
    num_examples: int
    chunk: int
    """Examples at a time."""
    held: int
    """Examples whose factors are in memory at once; those of further examples are computed several times."""
    bytes: int
    """The peak of what torch allocates in addition."""
    result_bytes: int
    """The part of these that is the result."""
    operations: float
    budget: int

    def __str__(self) -> str:
        chunks = -(-self.num_examples // self.chunk)
        return (
            f"{self.work} of {self.num_examples} examples: {chunks} chunks of {self.chunk}, {readable(self.bytes)} "
            f"of a budget of {readable(self.budget)} (result {readable(self.result_bytes)}), {self.operations:.2g} "
            "operations"
        )
