"""The sizes of a block for one example, from which operations are counted."""

from __future__ import annotations

from dataclasses import dataclass

from dnn2gp.features.blocks import Block, Lookup, Outer


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
        """Numbers that the block has at least, in whichever form it is held."""
        return min(rows * self.p, self.a + rows * self.g)

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
