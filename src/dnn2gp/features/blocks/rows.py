"""Rows: a block that is held as it is. For weights with few entries, and for weights that no rule knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks.base import Block


@final
class Rows(Block):
    """J ∈ R^{n×R×p} itself."""

    def __init__(self, values: Float[Tensor, "n R p"], parts: tuple[slice, ...]) -> None:
        """The rows, in the order of the parts."""
        self.values, self.parts = values, parts

    @property
    def num_examples(self) -> int:
        """n."""
        return self.values.shape[0]

    @property
    def num_rows(self) -> int:
        """R."""
        return self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.values.dtype

    def tensors(self) -> tuple[Tensor, ...]:
        """J."""
        return (self.values,)

    def to(self, dtype: torch.dtype) -> Rows:
        """In another dtype."""
        return Rows(self.values.to(dtype), self.parts)

    def take(self, examples: slice) -> Rows:
        """Some of the examples."""
        return Rows(self.values[examples], self.parts)

    def joined(self, others: Sequence[Block]) -> Rows:
        """All examples."""
        return Rows(torch.cat([self.values, *(other.rows() for other in others)]), self.parts)

    def scaled(self, scales: Sequence[Float[Tensor, ""]]) -> Rows:
        """J diag(scale)."""
        if len(self.parts) == 1:
            return Rows(self.values * scales[0], self.parts)
        sizes = torch.tensor([part.stop - part.start for part in self.parts], device=self.values.device)
        return Rows(self.values * torch.stack(list(scales)).repeat_interleave(sizes).to(self.dtype), self.parts)

    def rows(self) -> Float[Tensor, "n R p"]:
        """J."""
        return self.values

    def add_full(self, other: Block, total: Float[Tensor, "n R m Q"]) -> None:
        """J J'ᵀ: one matrix product."""
        flat = total.view(self.num_examples * self.num_rows, -1)
        flat.addmm_(self.values.flatten(0, 1), other.rows().flatten(0, 1).T)

    def add_trace(self, other: Block, total: Float[Tensor, "n m"]) -> None:
        """The rows of an example as one long vector: one matrix product."""
        total.addmm_(self.values.flatten(1), other.rows().flatten(1).T)

    def add_diagonal(self, other: Block, total: Float[Tensor, "n m R"]) -> None:
        """One matrix product a row."""
        total += (self.values.transpose(0, 1) @ other.rows().permute(1, 2, 0)).permute(1, 2, 0)

    def squares(self) -> Float[Tensor, " p"]:
        """Σ J²."""
        return torch.linalg.vector_norm(self.values, dim=(0, 1)).square_()

    def marginal(self, variances: Float[Tensor, " p"]) -> Float[Tensor, "n R R"]:
        """(J ∘ v) Jᵀ."""
        return (self.values * variances) @ self.values.mT

    def push(self, vectors: Float[Tensor, "p S"]) -> Float[Tensor, "n R S"]:
        """J v."""
        return self.values @ vectors

    def pull(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "p S"]:
        """Jᵀ u."""
        return self.values.flatten(0, 1).T @ cotangents.flatten(0, 1)

    def pull_each(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "n p S"]:
        """Jᵀ u of each example."""
        return self.values.mT @ cotangents
