"""A kernel matrix block by block: the order of its pairs of blocks, and where the result goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from uuid import uuid4

import torch
from torch import Tensor

from dnn2gp.features.budget.peak import Peak
from dnn2gp.features.factors import Factors
from dnn2gp.support.files import check_place, move_into_place
from dnn2gp.support.memory import chunks, require, room
from dnn2gp.support.progress import track


class KernelBuffer:
    """A tensor that is written block by block. A file is never in memory as a whole, and appears once it is complete.

    The file is mapped anew for each block, so that only the pages of one block are in memory.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, out: Path | None, budget: int, what: str
    ) -> None:
        """In memory, if it fits into the budget, or in the file `out`."""
        self.shape, self.dtype, self.out = shape, dtype, None if out is None else check_place(Path(out))
        size = prod(shape) * dtype.itemsize
        self.bytes = 0 if out is not None else size
        self._values: Tensor | None = None
        if self.out is None:
            instead = (
                "Pass fewer inputs at a time, use the trace or diagonal kernel, or write the result to disk with "
                "out=FILE."
            )
            require(size, budget, f"{what} of {' × '.join(map(str, shape))}", instead)
            self._values = torch.empty(shape, dtype=dtype, device=device)
        else:
            self._part = self.out.with_name(f".dnn2gp-{uuid4().hex}")

    def __enter__(self) -> KernelBuffer:
        """Reserve the disk space, so that a full disk fails here."""
        if self.out is not None:
            try:
                self._allocate()
            except BaseException:
                self._part.unlink(missing_ok=True)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Move the complete file to its place, or remove it if the work failed."""
        if self.out is None:
            return
        try:
            if kind is None:
                move_into_place(self._part, self.out)
        finally:
            self._part.unlink(missing_ok=True)

    def write(self, rows: slice, columns: slice, block: Tensor, axis: int, mirrored: bool) -> None:
        """Write a block at (rows, columns), and if `mirrored` its transpose at (columns, rows)."""
        values = self._mapped(self._part) if self._values is None else self._values
        if axis == 1:
            values[rows, columns] = block
            if mirrored:
                values[columns, rows] = block.transpose(0, 1)
        else:
            values[rows, :, columns] = block
            if mirrored:
                values[columns, :, rows] = block.permute(2, 3, 0, 1)

    def tensor(self) -> Tensor:
        """The result; for a file, a view of it that is read on access."""
        if self._values is not None:
            return self._values
        assert self.out is not None
        return self._mapped(self.out)

    def _allocate(self) -> None:
        size = prod(self.shape) * self.dtype.itemsize
        with self._part.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)

    def _mapped(self, path: Path) -> Tensor:
        flat = torch.from_file(str(path), shared=True, size=prod(self.shape), dtype=self.dtype)
        return flat.view(self.shape)


Maker = Callable[[slice], Factors]


@dataclass(frozen=True)
class PairSide:
    """One axis of a kernel: how many examples, the memory of their factors, and how these are made."""

    num_examples: int
    rows: int
    """R, the rows of an example."""
    kept: int
    """Bytes of an example's factors."""
    need: Peak
    """Bytes of examples while their factors are made."""
    make: Maker
    most: int = 128
    """The largest number of examples that are computed at once."""
    fewest: int = 1
    """The smallest number of examples that are computed at once."""


@dataclass(frozen=True)
class PairPlan:
    """Blocks of `block` examples. Factors of `held` examples on the left are in memory at once; on the right, those of
    all examples or of one block. `bytes` is the peak of all this."""

    block: int
    held: int
    right_held: bool
    bytes: int

    def made(self, rows: int, columns: int | None) -> int:
        """How many examples' factors are made in total, for rows × columns (None: a triangle of rows × rows)."""
        starts = range(0, rows, self.held)
        if columns is None:
            return rows + sum(rows - min(rows, start + self.held) for start in starts)
        return rows + columns * (1 if self.right_held else len(starts))


# Rows of a block of a kernel matrix: large enough for a fast product, small enough to stay in a cache.
_BLOCK_ROWS = 1024


def plan_pairs(
    left: PairSide,
    right: PairSide | None,
    product: Peak,
    budget: int,
    what: str,
    instead: str,
    *,
    whole: bool = True,
    beside: int = 0,
) -> PairPlan:
    """The largest blocks, and as many held factors, as fit into `budget` with `beside` bytes for the result.

    `product` is the memory of the product of n examples with n others. `right` None means a symmetric kernel, of which
    one triangle is computed. `whole`: all pairs of rows are computed, so blocks of a few rows are work enough.
    """
    other, space = left if right is None else right, room(budget, beside) - beside
    rows = max(left.rows, other.rows)
    block = max(1, min(left.most, other.most, _BLOCK_ROWS // rows if whole else left.most))
    block = max(1, min(block, max(left.num_examples, other.num_examples)))
    while True:
        # A block is multiplied, or made, while one block of factors on each side is in memory.
        fixed = max(product(block), left.need(max(block, left.fewest)), other.need(max(block, other.fewest)))
        least = fixed + block * (left.kept + other.kept)
        if least <= space or block == 1:
            break
        block = max(1, block // 2)
    require(beside + least, budget, what, instead)
    everything = left.num_examples * left.kept + (0 if right is None else right.num_examples * right.kept)
    if fixed + everything <= space:
        return PairPlan(block, left.num_examples, True, fixed + everything)
    more = (space - fixed - block * other.kept) // max(1, left.kept)
    held = min(left.num_examples, max(block, more // block * block))
    return PairPlan(block, held, False, fixed + held * left.kept + block * other.kept)


def pairs(
    left: PairSide, right: PairSide | None, plan: PairPlan, what: str
) -> Iterator[tuple[slice, slice, Factors, Factors]]:
    """(left examples, right examples, the factors of each) for all pairs of blocks, or for one triangle of them."""
    other = left if right is None else right
    columns = list(chunks(other.num_examples, plan.block))
    kept = [other.make(part) for part in columns] if plan.right_held and right is not None else None
    groups = list(chunks(left.num_examples, plan.held))
    steps = track(range(-(-left.num_examples // plan.block)), what)
    for group in groups:
        parts = [
            slice(group.start + p.start, group.start + p.stop) for p in chunks(group.stop - group.start, plan.block)
        ]
        own: dict[int, Factors] = {}
        own.update((part.start, left.make(part)) for part in parts)
        for index, part in enumerate(parts):
            next(steps, None)
            for mate in parts[index:] if right is None else []:
                yield part, mate, own[part.start], own[mate.start]
        for position, column in enumerate(columns):
            if right is None and column.start < group.stop:
                continue
            factors = kept[position] if kept is not None else other.make(column)
            for part in parts:
                yield part, column, own[part.start], factors
    for _ in steps:
        pass
