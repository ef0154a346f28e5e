"""Rows: a block that stores J itself, for weights with few entries and for weights that no rule covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks.base import Arrangement, Block, Piece
from dnn2gp.features.blocks.products import add_product


@final
class Rows(Piece):
    """J ∈ R^{n×R×p} itself, with its columns in the order of the parts or of a matrix, row by row."""

    def __init__(
        self,
        values: Float[Tensor, "n R p"],
        parts: tuple[slice, ...],
        scale: float = 1.0,
        arrangement: Arrangement | None = None,
    ) -> None:
        """The rows without their scale; `arrangement` is the order of their columns."""
        self.values, self.parts, self.scale = values, parts, scale
        self.arrangement = arrangement or Arrangement(1, values.shape[2])

    @property
    def num_examples(self) -> int:
        return self.values.shape[0]

    @property
    def num_rows(self) -> int:
        return self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.values,)

    def to(self, dtype: torch.dtype) -> Rows:
        return self._with(self.values.to(dtype))

    def take(self, examples: slice) -> Rows:
        return self._with(self.values[examples])

    def joined(self, others: Sequence[Block]) -> Rows:
        alike = [other for other in others if isinstance(other, Rows) and self._alike(other)]
        if len(alike) == len(others):
            return self._with(torch.cat([self.values, *(other.values for other in alike)]))
        return Rows(torch.cat([self.rows(), *(other.rows() for other in others)]), self.parts)

    def scaled(self, scales: Sequence[float]) -> Rows:
        """A common scale if all parts have the same one, otherwise J diag(scale)."""
        if len(set(scales)) == 1:
            return Rows(self.values, self.parts, self.scale * scales[0], self.arrangement)
        sizes = [part.stop - part.start for part in self.parts]
        pieces = [piece * scale for piece, scale in zip(self.rows().split(sizes, -1), scales, strict=True)]
        return Rows(torch.cat(pieces, -1), self.parts)

    def rows(self) -> Float[Tensor, "n R p"]:
        """J."""
        values = self.values if self.scale == 1 else self.values * self.scale
        if self.arrangement.plain:
            return values
        return self.arrangement.vectors(values.unflatten(-1, (self.arrangement.o, self.arrangement.i)))

    def together(self, other: Block) -> Iterator[tuple[Rows, Rows]]:
        yield self, other if isinstance(other, Rows) else Rows(other.rows(), other.parts)

    def add_full(self, other: Piece, total: Float[Tensor, "n R m Q"]) -> None:
        """J J'ᵀ: one matrix product."""
        left, right, scale = self._matched(other)
        flat = total.view(self.num_examples * self.num_rows, -1)
        add_product(flat, left.flatten(0, 1), right.flatten(0, 1), scale)

    def add_trace(self, other: Piece, total: Float[Tensor, "n m"]) -> None:
        """The rows of an example as one long vector: one matrix product."""
        left, right, scale = self._matched(other)
        add_product(total, left.flatten(1), right.flatten(1), scale)

    def add_diagonal(self, other: Piece, total: Float[Tensor, "n m R"]) -> None:
        """One matrix product per row."""
        left, right, scale = self._matched(other)
        total.add_((left.transpose(0, 1) @ right.permute(1, 2, 0)).permute(1, 2, 0), alpha=scale)

    def squares(self) -> Float[Tensor, " p"]:
        """Σ J²."""
        flat = self.values.flatten(0, 1)
        size = flat.shape[1]
        ones = flat.new_ones(min(len(flat), max(1, CACHED // size)))
        buffer = flat.new_empty(len(ones), size)
        total = flat.new_zeros(size)
        for piece in flat.split(len(ones)):
            add_squares(piece, buffer[: len(piece)], ones[: len(piece)], total)
        return self.arrangement.from_rows(total.mul_(self.scale**2).unsqueeze(-1)).squeeze(-1)

    def marginal(self, variances: Float[Tensor, " p"]) -> Float[Tensor, "n R R"]:
        """(J ∘ v) Jᵀ."""
        weights = self.arrangement.by_rows((variances * self.scale**2).unsqueeze(-1)).squeeze(-1)
        return (self.values * weights) @ self.values.mT

    def push(self, vectors: Float[Tensor, "p S"]) -> Float[Tensor, "n R S"]:
        """J v."""
        return self.values @ self.arrangement.by_rows(vectors * self.scale)

    def pull(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "p S"]:
        """Jᵀ u."""
        return self.arrangement.from_rows(self.values.flatten(0, 1).T @ (cotangents.flatten(0, 1) * self.scale))

    def pull_each(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "n p S"]:
        """Jᵀ u of each example."""
        return self.arrangement.from_rows(self.values.mT @ (cotangents * self.scale))

    def _matched(self, other: Block) -> tuple[Float[Tensor, "n R p"], Float[Tensor, "m Q p"], float]:
        """The values of both with their columns in the same order, and the scale that is missing in their products."""
        if isinstance(other, Rows) and other.arrangement == self.arrangement:
            return self.values, other.values, self.scale * other.scale
        return self.rows(), other.rows(), 1.0

    def _alike(self, other: Rows) -> bool:
        return other.arrangement == self.arrangement and other.scale == self.scale

    def _with(self, values: Float[Tensor, "n R p"]) -> Rows:
        return Rows(values, self.parts, self.scale, self.arrangement)


# The largest number of entries in a temporary of a sum of squares, which should stay in the processor's cache.
CACHED = 1 << 18


def add_squares(
    rows: Float[Tensor, "m p"], buffer: Float[Tensor, "m p"], ones: Float[Tensor, " m"], total: Float[Tensor, " p"]
) -> None:
    """total += Σ rows², using a buffer that exists already."""
    if rows.requires_grad:
        total.add_(rows.square().sum(0))
    else:
        total.addmv_(torch.mul(rows, rows, out=buffer).T, ones)
