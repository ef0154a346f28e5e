"""How much a block holds and how many operations its products take, for any number of rows: what a plan adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dnn2gp.features.blocks import Block, Lookup, Outer
from dnn2gp.features.blocks.lookup import TIMES
from dnn2gp.features.blocks.outer import most_numbers
from dnn2gp.features.factors import differing


@dataclass(frozen=True)
class BlockSize:
    """The sizes of a block for one example: a numbers once, g numbers for each row, p weights."""

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

    def kept(self, rows: int) -> int:
        """Numbers in the form that is kept (see `Outer.compact`)."""
        return rows * self.p if self._explicit(rows) else self.a + rows * self.g

    def products(self, other: BlockSize, count: int, rows: int, columns: int) -> int:
        """Numbers that a product of so many examples with as many of the other form holds besides (see `together`)."""
        if self.table and other.table:
            return count * (TIMES + 1) * (rows * self.g + columns * other.g)
        if self.shape is None or self.shape != other.shape or self._explicit(rows) != other._explicit(columns):
            both = self.shape is None and other.shape is None
            return 0 if both else 2 * count * (rows * self.p + columns * other.p)  # rows of both, arranged alike
        if self._explicit(rows):
            return 0
        o, i = self.shape
        pairs = self.positions * other.positions
        if pairs == 1:
            return 0
        if o * i <= pairs * (o + i / (rows * columns) + 4):
            own = most_numbers(count, rows, o, i, self.positions)
            return own + most_numbers(count, columns, o, i, other.positions)
        return count * (self.a + rows * self.g + other.a + columns * other.g)

    def operations(self, rows: int) -> float:
        """To bring the factors into the form that is kept."""
        return 2.0 * rows * self.p * self.positions if self._explicit(rows) else 0.0

    def pair_operations(self, left: int, right: int, *, trace: bool) -> float:
        """Of the product of two examples: all pairs of rows, or (`trace`) only equal ones."""
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


def products(left: Sequence[BlockSize], right: Sequence[BlockSize], count: int, rows: int, columns: int) -> int:
    """Numbers that the products of all blocks hold besides, one pair of blocks after the other."""
    both = [(own, other) for own in left for other in right if own.parts == other.parts]
    most = max((own.products(other, count, rows, columns) for own, other in both), default=0)
    ranges = differing([size.parts for size in left], [size.parts for size in right])
    alone = sum(part.stop - part.start for part in ranges)
    return max(most, 2 * count * (rows + columns) * alone)
