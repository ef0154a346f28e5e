"""Factors: SᵀJ of a few examples, as one block for each group of weights; every product is a sum over the blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks import Block, Outer, Rows
from dnn2gp.features.blocks.base import Parts, Piece
from dnn2gp.support.memory import chunks

# Rows (examples, for the trace) of the smallest blocks of a symmetric product: smaller ones cost more than they save.
_TRIANGLE = 160
_TRIANGLE_EXAMPLES = 32
# Matrix products are fastest with sides that are multiples of this.
_ALIGNED = 16
# The largest number of entries that vectors may have at all positions of a layer, and the fewest vectors at a time.
_NUMBERS = 1 << 22
_COLUMNS = 32


@dataclass(frozen=True, eq=False)
class Factors:
    """SᵀJ ∈ R^{(n·R)×P} by blocks. The parts of all blocks cover each weight once, or not if it has no derivative."""

    blocks: tuple[Block, ...]
    num_weights: int

    @staticmethod
    def of_rows(rows: Float[Tensor, "n R P"]) -> Factors:
        """One block for all weights, from an engine without layers."""
        return Factors((Rows(rows, (slice(0, rows.shape[2]),)),), rows.shape[2])

    @property
    def num_examples(self) -> int:
        """n."""
        return self.blocks[0].num_examples

    @property
    def num_rows(self) -> int:
        """R, the rows of each example."""
        return self.blocks[0].num_rows

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the blocks."""
        return self.blocks[0].dtype

    @property
    def differentiable(self) -> bool:
        """Whether the blocks keep a graph."""
        return any(tensor.requires_grad for block in self.blocks for tensor in block.tensors())

    @property
    def bytes(self) -> int:
        """The memory of all blocks."""
        return sum(block.bytes for block in self.blocks)

    def bytes_per_example(self, num_rows: int) -> int:
        """The memory of one example's blocks if they had R rows, where some tensors are shared by all rows."""
        shared = sum(block.shared_bytes for block in self.blocks)
        return ceil((shared + (self.bytes - shared) * num_rows / self.num_rows) / self.num_examples)

    def with_blocks(self, blocks: Sequence[Block]) -> Factors:
        """Other blocks of the same weights."""
        return replace(self, blocks=tuple(blocks))

    def to(self, dtype: torch.dtype) -> Factors:
        """In another dtype."""
        return self.with_blocks([block if block.dtype == dtype else block.to(dtype) for block in self.blocks])

    def take(self, examples: slice) -> Factors:
        """The factors of a range of examples."""
        return self.with_blocks([block.take(examples) for block in self.blocks])

    def joined(self, others: Sequence[Factors]) -> Factors:
        """The factors of these examples, followed by those of the others."""
        parts = [block.parts for block in self.blocks]
        if any([block.parts for block in other.blocks] != parts for other in others):
            return Factors.of_rows(torch.cat([self.rows(), *(other.rows() for other in others)]))
        columns = zip(self.blocks, *(other.blocks for other in others), strict=True)
        return self.with_blocks([first.joined(rest) for first, *rest in columns])

    def alike(self, other: Factors) -> bool:
        """Whether both have blocks of the same kinds and sizes, so that they can be joined without forming rows."""
        return len(self.blocks) == len(other.blocks) and all(
            type(own) is type(its)
            and own.parts == its.parts
            and own.scale == its.scale
            and [tensor.shape[1:] for tensor in own.tensors()] == [tensor.shape[1:] for tensor in its.tensors()]
            for own, its in zip(self.blocks, other.blocks, strict=True)
        )

    def compact(self) -> Factors:
        """Each block in the form that is cheaper to store and to use."""
        return self.with_blocks([block.compact() if isinstance(block, Outer) else block for block in self.blocks])

    def densest(self) -> Factors:
        """Factors of this size whose products need the most memory."""
        return self.with_blocks([block.densest() for block in self.blocks])

    def rows(self) -> Float[Tensor, "n R P"]:
        """SᵀJ itself."""
        if len(self.blocks) == 1 and self.blocks[0].parts == (slice(0, self.num_weights),):
            return self.blocks[0].rows()
        pieces = [(part, piece) for block in self.blocks for part, piece in _pieces(block, block.rows())]
        pieces.sort(key=lambda pair: pair[0].start)
        if sum(part.stop - part.start for part, _ in pieces) == self.num_weights:
            return torch.cat([piece for _, piece in pieces], -1)
        result = pieces[0][1].new_zeros(self.num_examples, self.num_rows, self.num_weights)
        for part, piece in pieces:
            result[..., part] = piece
        return result

    def columns(self, parts: Sequence[slice]) -> Float[Tensor, "n R p"]:
        """SᵀJ of some ranges of weights, one after the other."""
        result = self._zeros(self.num_examples, self.num_rows, sum(part.stop - part.start for part in parts))
        for block in self.blocks:
            if not any(a.start < b.stop and b.start < a.stop for a in block.parts for b in parts):
                continue
            for own, piece in _pieces(block, block.rows()):
                start = 0
                for part in parts:
                    low, high = max(own.start, part.start), min(own.stop, part.stop)
                    if low < high:
                        place = slice(start + low - part.start, start + high - part.start)
                        result[..., place] = piece[..., low - own.start : high - own.start]
                    start += part.stop - part.start
        return result

    def full(self, other: Factors, out: Float[Tensor, "n R m Q"] | None = None) -> Float[Tensor, "n R m Q"]:
        """J J'ᵀ for all pairs of rows; only one triangle is computed where `other` is this.

        `out`, if given, holds zeros and receives the result: part of a larger matrix, which then needs no copy.
        """
        total = out
        if total is None:
            total = self._zeros(self.num_examples, self.num_rows, other.num_examples, other.num_rows)
        tiles = self._tiles(other, max(1, _TRIANGLE // self.num_rows), _ALIGNED // gcd(_ALIGNED, self.num_rows))
        for left, right in self._together(other):
            for rows, columns in tiles:
                left.take(rows).add_full(right.take(columns), total[rows, :, columns])
            del left, right  # freed before the next ones are made
        for rows, columns in tiles:
            if other is self and rows != columns:
                total[columns, :, rows] = total[rows, :, columns].permute(2, 3, 0, 1)
        return total

    def trace(self, other: Factors) -> Float[Tensor, "n m"]:
        """Σ_r J_r J'_rᵀ for all pairs of examples; only one triangle is computed where `other` is this."""
        total = self._zeros(self.num_examples, other.num_examples)
        tiles = self._tiles(other, _TRIANGLE_EXAMPLES, _ALIGNED)
        for left, right in self._together(other):
            for rows, columns in tiles:
                left.take(rows).add_trace(right.take(columns), total[rows, columns])
            del left, right
        for rows, columns in tiles:
            if other is self and rows != columns:
                total[columns, rows] = total[rows, columns].T
        return total

    def diagonal(self, other: Factors) -> Float[Tensor, "n m R"]:
        """J_r J'_rᵀ for all pairs of examples and each row r."""
        total = self._zeros(self.num_examples, other.num_examples, self.num_rows)
        for left, right in self._together(other):
            left.add_diagonal(right, total)
            del left, right
        return total

    def squares(self) -> Float[Tensor, " P"]:
        """Σ J² of each weight, the diagonal of JᵀJ."""
        result = self._zeros(self.num_weights)
        for block in self.blocks:
            for part, piece in _pieces(block, block.squares()):
                result[part] = piece
        return result

    def moments(self) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
        """Σ J and Σ J² of each weight, over all rows."""
        sums, squares = self._zeros(2, self.num_weights)
        for block in self.blocks:
            own, own_squares = block.moments()
            for part, piece in _pieces(block, own):
                sums[part] = piece
            for part, piece in _pieces(block, own_squares):
                squares[part] = piece
        return sums, squares

    def marginal(self, variances: Float[Tensor, " P"]) -> Float[Tensor, "n R R"]:
        """J diag(v) Jᵀ of each example."""
        total = self._zeros(self.num_examples, self.num_rows, self.num_rows)
        for block in self.blocks:
            total += block.marginal(_gathered(block, variances))
        return total

    def push(self, vectors: Float[Tensor, "P S"], dtype: torch.dtype | None = None) -> Float[Tensor, "n R S"]:
        """J v, in the dtype of the factors or in `dtype`: only one block at a time is converted."""
        dtype = self.dtype if dtype is None else dtype
        vectors = vectors.to(dtype)
        shape = self.num_examples, self.num_rows, vectors.shape[1]
        total = torch.zeros(shape, dtype=dtype, device=self.device)
        for block in self.blocks:
            own = block if block.dtype == dtype else block.to(dtype)
            for columns in chunks(vectors.shape[1], self._columns()):
                total[..., columns] += own.push(_gathered(block, vectors[:, columns]))
        return total

    def pull(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u, summed over the examples."""
        cotangents = cotangents.to(self.dtype)
        result = self._zeros(self.num_weights, cotangents.shape[2])
        for columns in chunks(cotangents.shape[2], self._columns()):
            few = cotangents[..., columns]
            for block in self.blocks:
                for part, piece in zip(block.parts, block.pull(few).split(_sizes(block)), strict=True):
                    result[part, columns] = piece
        return result

    def pull_each(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "n P S"]:
        """Jᵀ u of each example separately."""
        cotangents = cotangents.to(self.dtype)
        result = self._zeros(self.num_examples, self.num_weights, cotangents.shape[2])
        for block in self.blocks:
            for part, piece in _pieces(block, block.pull_each(cotangents).mT):
                result[:, part] = piece.mT
        return result

    def _together(self, other: Factors) -> Iterator[tuple[Piece, Piece]]:
        """Pieces of the same weights; rows where the two are divided differently (inputs of two lengths, say)."""
        for block in self.blocks:
            for mate in other.blocks:
                if mate.parts == block.parts:
                    yield from block.together(mate)
        ranges = _joined_ranges(differing([b.parts for b in self.blocks], [b.parts for b in other.blocks]))
        if ranges:
            yield Rows(self.columns(ranges), ()), Rows(other.columns(ranges), ())

    def _tiles(self, other: Factors, size: int, unit: int) -> list[tuple[slice, slice]]:
        """The tiles of a product: one triangle if it is symmetric and not differentiated, otherwise all of it."""
        own, others = slice(0, self.num_examples), slice(0, other.num_examples)
        return [(own, others)] if other is not self or self.differentiable else _halvings(own, size, unit)

    @property
    def device(self) -> torch.device:
        """The device of the blocks."""
        return self.blocks[0].tensors()[-1].device

    def ones(self, count: int) -> Float[Tensor, "n R S"]:
        """Cotangents of ones, which add up all rows."""
        return torch.ones(self.num_examples, self.num_rows, count, dtype=self.dtype, device=self.device)

    def _columns(self) -> int:
        """Vectors at a time in a product."""
        each = max(tensor.numel() for block in self.blocks for tensor in block.tensors()) // self.num_rows
        return max(_COLUMNS, _NUMBERS // max(1, each))

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


def differing(left: Sequence[Parts], right: Sequence[Parts]) -> list[slice]:
    """The ranges of weights whose block exists on one side only."""
    alone = [parts for parts in left if parts not in right] + [parts for parts in right if parts not in left]
    return [part for parts in alone for part in parts]


def _joined_ranges(ranges: Sequence[slice]) -> list[slice]:
    """The same weights, each in one range."""
    result: list[slice] = []
    for part in sorted(ranges, key=lambda part: part.start):
        if result and part.start <= result[-1].stop:
            result[-1] = slice(result[-1].start, max(part.stop, result[-1].stop))
        else:
            result.append(part)
    return result


def _halvings(part: slice, size: int, unit: int) -> list[tuple[slice, slice]]:
    """Tiles on and below the diagonal that cover a triangle: large ones away from the diagonal, small ones on it; their
    sides are multiples of `unit` where they can be."""
    count = part.stop - part.start
    if count <= max(size, unit):
        return [(part, part)]
    middle = part.start + max(unit, round(count / 2 / unit) * unit)
    first, second = slice(part.start, middle), slice(middle, part.stop)
    return [(second, first), *_halvings(first, size, unit), *_halvings(second, size, unit)]


def _sizes(block: Block) -> list[int]:
    return [part.stop - part.start for part in block.parts]


def _pieces(block: Block, values: Float[Tensor, "*B p"]) -> list[tuple[slice, Tensor]]:
    """Values over a block's weights, part by part."""
    return list(zip(block.parts, values.split(_sizes(block), -1), strict=True))


def _gathered(block: Block, vectors: Tensor) -> Tensor:
    """The entries of a block's weights, in the block's order."""
    pieces = [vectors[part] for part in block.parts]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
