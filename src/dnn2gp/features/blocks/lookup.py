"""Lookup: the Jacobian of an embedding. Only the rows of the table that an example looks up have a derivative."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.features.blocks.base import Block
from dnn2gp.features.blocks.rows import Rows


@final
class Lookup(Block):
    """Indices t (n × L) into a table of V rows of d numbers, and G (n × R × L × d): J_r[v] = Σ_l [t_l = v] g_rl."""

    def __init__(
        self,
        index: Int[Tensor, "n L"],
        G: Float[Tensor, "n R L d"],
        parts: tuple[slice, ...],
        num_entries: int,
        scale: float = 1.0,
    ) -> None:
        """One part, the table of `num_entries` rows."""
        self.index, self.G, self.parts, self.num_entries, self.scale = index, G, parts, num_entries, scale

    @property
    def num_examples(self) -> int:
        return self.G.shape[0]

    @property
    def num_rows(self) -> int:
        return self.G.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.G.dtype

    def tensors(self) -> tuple[Tensor, ...]:
        return self.index, self.G

    @property
    def shared_bytes(self) -> int:
        return self.index.nbytes

    def to(self, dtype: torch.dtype) -> Lookup:
        return self._with(self.index, self.G.to(dtype))

    def take(self, examples: slice) -> Lookup:
        return self._with(self.index[examples], self.G[examples])

    def densest(self) -> Lookup:
        """As if all examples looked up the same entries, each of them once."""
        entries = torch.arange(self.index.shape[1], device=self.index.device) % self.num_entries
        return self._with(entries.expand_as(self.index), self.G)

    def joined(self, others: Sequence[Block]) -> Block:
        """As lookups if the numbers of positions agree, otherwise as rows."""
        same = [o for o in others if isinstance(o, Lookup) and o.index.shape[1] == self.index.shape[1]]
        if len(same) < len(others):
            return Rows(self.rows(), self.parts).joined(others)
        return self._with(torch.cat([self.index, *(o.index for o in same)]), torch.cat([self.G, *(o.G for o in same)]))

    def scaled(self, scales: Sequence[float]) -> Lookup:
        """A common scale, because a table is a single part."""
        return Lookup(self.index, self.G, self.parts, self.num_entries, self.scale * scales[0])

    def rows(self) -> Float[Tensor, "n R p"]:
        """J for the whole table."""
        return self._over(torch.arange(self.num_entries, device=self.G.device)).rows()

    def together(self, other: Block) -> Iterator[tuple[Rows, Rows]]:
        """Rows over the entries that both look up, as many at a time as keep these rows no larger than G."""
        if not isinstance(other, Lookup):
            yield Rows(self.rows(), self.parts), Rows(other.rows(), self.parts)
            return
        common = self.index.unique()
        if other is not self:
            common = common[torch.isin(common, other.index.unique())]
        positions = min(self.index.shape[1], other.index.shape[1])
        for entries in common.split(positions) if len(common) else ():
            left = self._over(entries)
            yield left, left if other is self else other._over(entries)
            del left

    def squares(self) -> Float[Tensor, " p"]:
        """Σ J² of each entry of the table that is looked up."""
        squares = self._merged().square().sum(1).flatten(0, 1)  # n·L × d
        total = squares.new_zeros(self.num_entries, self.G.shape[3]).index_add(0, self.index.flatten(), squares)
        return total.flatten() * self.scale**2

    def marginal(self, variances: Float[Tensor, " p"]) -> Float[Tensor, "n R R"]:
        """J diag(v) Jᵀ over the entries that are looked up."""
        weights = variances.view(self.num_entries, -1)[self.index].flatten(1) * self.scale**2  # n × L·d
        merged = self._merged().flatten(2)
        return (merged * weights.unsqueeze(1)) @ merged.mT

    def push(self, vectors: Float[Tensor, "p S"]) -> Float[Tensor, "n R S"]:
        """Σ_l ⟨g_rl, v[t_l]⟩."""
        looked_up = vectors.view(self.num_entries, self.G.shape[3], -1)[self.index]
        return self.G.flatten(2) @ (looked_up.flatten(1, 2) * self.scale)

    def pull(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "p S"]:
        """Σ_l (Σ_r u_r g_rl) added at t_l."""
        mixed = self._mixed(cotangents)
        total = mixed.new_zeros(self.num_entries, *mixed.shape[2:])
        return total.index_add_(0, self.index.flatten(), mixed.flatten(0, 1)).flatten(0, 1)

    def pull_each(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "n p S"]:
        """The same for each example separately."""
        mixed = self._mixed(cotangents)
        n, _, d, S = mixed.shape
        places = self.index + self.num_entries * torch.arange(n, device=self.index.device)[:, None]
        total = mixed.new_zeros(n * self.num_entries, d, S)
        return total.index_add_(0, places.flatten(), mixed.flatten(0, 1)).view(n, -1, S)

    def _mixed(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "n L d S"]:
        """Σ_r u_r G_r."""
        return (self.G.flatten(2).mT @ (cotangents * self.scale)).unflatten(1, self.G.shape[2:])

    def _merged(self) -> Float[Tensor, "n R L d"]:
        """G summed over all positions that look up the same entry: the sum is at the first of them, zero at the others.

        The positions of an example then belong to different columns of J.
        """
        same = self.index.unsqueeze(2) == self.index.unsqueeze(1)  # n × L × L
        first = same.byte().argmax(2)
        where = first[:, None, :, None].expand_as(self.G)
        return torch.zeros_like(self.G).scatter_add(2, where, self.G)

    def _over(self, entries: Int[Tensor, " U"]) -> Rows:
        """J for some entries of the table, in sorted order."""
        n, R, L, d = self.G.shape
        place = torch.searchsorted(entries, self.index.contiguous()).clamp_(max=len(entries) - 1)
        known = (entries[place] == self.index).to(self.dtype)
        rows = self.G.new_zeros(n, R, len(entries), d)
        where = place[:, None, :, None].expand(n, R, L, d)
        rows.scatter_add_(2, where, self.G * known[:, None, :, None])
        return Rows(rows.flatten(2), self.parts, self.scale)

    def _with(self, index: Tensor, G: Tensor) -> Lookup:
        return Lookup(index, G, self.parts, self.num_entries, self.scale)
