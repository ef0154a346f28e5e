"""Outer: J = Σ_l g_l ⊗ a_l, the Jacobian of a weight matrix that meets its input at L positions.

A layer z_l = W a_l + b (Linear at L tokens, a convolution at L patches) has, with g_l = ∂f_r/∂z_l,

    ∂f_r/∂W = Σ_l g_l a_lᵀ ,     ∂f_r/∂b = Σ_l g_l ,

so A (i × L, with a row of ones for the bias) and G (R × o × L) hold what J holds in R × o × i numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks.base import Arrangement, Block, Piece
from dnn2gp.features.blocks.products import each_product
from dnn2gp.features.blocks.rows import CACHED, Rows, add_squares
from dnn2gp.support.memory import chunks


@final
class Outer(Piece):
    """A (n × i × L) and G (n × R × o × L), J_r = Σ_l g_rl ⊗ a_l.

    parts       the weight matrix, and the bias if there is one; then the last of the i rows of A is its row of ones
    transposed  whether the weight lies in memory as i × o (as in x @ W) rather than as o × i (as in nn.Linear)
    """

    def __init__(
        self,
        A: Float[Tensor, "n i L"],
        G: Float[Tensor, "n R o L"],
        parts: tuple[slice, ...],
        *,
        transposed: bool = False,
        scale: float = 1.0,
    ) -> None:
        """The factors; two parts mean weight and bias, and then A ends with the row for the bias."""
        self.A, self.G, self.parts, self.scale = A, G, parts, scale
        self.arrangement = Arrangement(G.shape[2], A.shape[1], len(parts) == 2, transposed)

    @property
    def num_examples(self) -> int:
        return self.A.shape[0]

    @property
    def num_rows(self) -> int:
        return self.G.shape[1]

    @property
    def num_positions(self) -> int:
        return self.A.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        return self.A.dtype

    def tensors(self) -> tuple[Tensor, ...]:
        return self.A, self.G

    @property
    def shared_bytes(self) -> int:
        return self.A.nbytes

    def to(self, dtype: torch.dtype) -> Outer:
        return self.with_factors(self.A.to(dtype), self.G.to(dtype))

    def take(self, examples: slice) -> Outer:
        return self.with_factors(self.A[examples], self.G[examples])

    def joined(self, others: Sequence[Block]) -> Block:
        """As outer products if the numbers of positions agree, otherwise as rows."""
        same = [other for other in others if isinstance(other, Outer) and self._alike(other)]
        if len(same) < len(others):
            return self._explicit().joined(others)
        return self.with_factors(torch.cat([self.A, *(o.A for o in same)]), torch.cat([self.G, *(o.G for o in same)]))

    def scaled(self, scales: Sequence[float]) -> Outer:
        """A common scale if weight and bias have the same one; otherwise that of the bias goes into the row of ones."""
        A = self.A
        if len(set(scales)) > 1:
            A = torch.cat([A[:, :-1], A[:, -1:] * (scales[1] / scales[0])], 1)
        return Outer(A, self.G, self.parts, transposed=self.arrangement.transposed, scale=self.scale * scales[0])

    def compact(self) -> Block:
        """The form that is cheaper to store and to use: rows, unless these have more than twice as many entries."""
        (_, i, L), (_, R, o, _) = self.A.shape, self.G.shape
        return self._explicit() if L > 1 and R * o * i <= 2 * (L * i + R * L * o) else self

    def rows(self) -> Float[Tensor, "n R p"]:
        """J_r = G_r Aᵀ, for all r of an example in one product."""
        return self._explicit().rows()

    def together(self, other: Block) -> Iterator[tuple[Piece, Piece]]:
        """The factors or, if cheaper, rows of a few output channels at a time, in buffers that fit into the cache."""
        if not isinstance(other, Outer) or other.arrangement != self.arrangement:
            yield from self._explicit().together(other)
        elif not self._rows_are_cheaper(other):
            yield self, other
        elif any(tensor.requires_grad for tensor in (*self.tensors(), *other.tensors())):
            left = self._explicit()
            yield left, left if other is self else other._explicit()
        else:
            size = min(channels_at_a_time(block.num_examples, *block._sizes) for block in (self, other))
            rows = self._channels(size)
            others = None if other is self else other._channels(size)
            for left in rows:
                yield left, left if others is None else next(others)

    def add_full(self, other: Piece, total: Float[Tensor, "n R m Q"]) -> None:
        """(A A'ᵀ) ∘ (G G'ᵀ), summed over pairs of positions."""
        assert isinstance(other, Outer)
        flat = total.view(self.num_examples, self.num_rows, other.num_examples * other.num_rows)
        for left_a, left_g in self._positions():
            for right_a, right_g in other._positions():
                inner = (left_a @ right_a.T).repeat_interleave(other.num_rows, 1)
                outer = left_g.flatten(0, 1) @ right_g.flatten(0, 1).T
                flat.addcmul_(outer.view_as(flat), inner.unsqueeze(1), value=self.scale * other.scale)

    def add_trace(self, other: Piece, total: Float[Tensor, "n m"]) -> None:
        """(A A'ᵀ) ∘ (Σ_r G_r G'_rᵀ), summed over pairs of positions."""
        assert isinstance(other, Outer)
        for left_a, left_g in self._positions():
            for right_a, right_g in other._positions():
                outer = left_g.flatten(1) @ right_g.flatten(1).T
                total.addcmul_(left_a @ right_a.T, outer, value=self.scale * other.scale)

    def add_diagonal(self, other: Piece, total: Float[Tensor, "n m R"]) -> None:
        """(A A'ᵀ) ∘ (G_r G'_rᵀ), summed over pairs of positions."""
        assert isinstance(other, Outer)
        for left_a, left_g in self._positions():
            for right_a, right_g in other._positions():
                outer = (left_g.transpose(0, 1) @ right_g.permute(1, 2, 0)).permute(1, 2, 0)
                total.addcmul_(outer, (left_a @ right_a.T).unsqueeze(-1), value=self.scale * other.scale)

    def squares(self) -> Float[Tensor, " p"]:
        """(Σ_r G_r²)ᵀ A² for one position; else the squares of the rows, a few examples at a time."""
        if self.num_positions == 1:
            squares = self.G.square().sum((1, 3)).T @ self.A.square().squeeze(2)
            return self.arrangement.vectors(squares) * self.scale**2
        return self._moments_of_rows(None)

    def moments(self) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"]]:
        """Both from the same rows, if rows are formed."""
        if self.num_positions == 1 or self.A.requires_grad or self.G.requires_grad:
            return super().moments()
        total = self.A.new_zeros(self.G.shape[2] * self.A.shape[1])
        squares = self._moments_of_rows(total)
        return self.arrangement.vectors(total.view(self.G.shape[2], -1)) * self.scale, squares

    def _moments_of_rows(self, sums: Float[Tensor, " p"] | None) -> Float[Tensor, " p"]:
        """The squares of the rows, a few examples at a time; the rows themselves are added to `sums`."""
        (_, i, _), (_, R, o, _) = self.A.shape, self.G.shape
        count = min(self.num_examples, max(1, CACHED // (R * o * i)))
        rows, buffer = self.A.new_empty(2, count, R * o, i)
        ones, total = self.A.new_ones(count * R), self.A.new_zeros(o * i)
        graph = self.A.requires_grad or self.G.requires_grad
        for A, G in zip(self.A.split(count), self.G.split(count), strict=True):
            few = each_product(G.flatten(1, 2), A, out=None if graph else rows[: len(A)]).view(-1, o * i)
            if sums is not None:
                sums.addmv_(few.T, ones[: len(few)])
            add_squares(few, buffer.view(-1, o * i)[: len(few)], ones[: len(few)], total)
        return self.arrangement.vectors(total.view(o, i)) * self.scale**2

    def marginal(self, variances: Float[Tensor, " p"]) -> Float[Tensor, "n R R"]:
        """G diag(v A²) Gᵀ for one position; else from the rows."""
        if self.num_positions > 1:
            return self._marginal_of_rows(variances)
        weighted = self.A.square().squeeze(2) @ self.arrangement.matrices(variances).T
        G = self.G.squeeze(3)
        return (G * (weighted * self.scale**2).unsqueeze(1)) @ G.mT

    def _marginal_of_rows(self, variances: Float[Tensor, " p"]) -> Float[Tensor, "n R R"]:
        """J diag(v) Jᵀ from J diag(v)^{½}, a few examples at a time."""
        if self.A.requires_grad or self.G.requires_grad:
            return self._explicit().marginal(variances)
        (_, i, _), (n, R, o, _) = self.A.shape, self.G.shape
        roots = self.arrangement.matrices(variances).sqrt().mul_(self.scale).flatten()
        count = min(n, max(1, CACHED // (R * o * i)))
        rows, result = self.A.new_empty(count, R * o, i), self.A.new_empty(n, R, R)
        for part in chunks(n, count):
            few = each_product(self.G[part].flatten(1, 2), self.A[part], out=rows[: part.stop - part.start])
            white = few.view(-1, R, o * i).mul_(roots)
            result[part] = white @ white.mT
        return result

    def push(self, vectors: Float[Tensor, "p S"]) -> Float[Tensor, "n R S"]:
        """⟨G_r, v A⟩: J v."""
        matrix = self.arrangement.matrices((vectors * self.scale).T).permute(1, 2, 0)
        if self.num_positions == 1:
            moved = (self.A.squeeze(2) @ matrix.transpose(0, 1).flatten(1)).view(self.num_examples, *matrix.shape[::2])
        else:
            moved = torch.einsum("ois,nil->nols", matrix, self.A).flatten(1, 2)
        return self.G.flatten(2) @ moved

    def pull(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "p S"]:
        """(Σ_r u_r G_r) Aᵀ, summed over the examples and positions in one product."""
        mixed = self._mixed(cotangents)
        if self.num_positions == 1:
            return self.arrangement.from_rows(torch.einsum("nols,nil->ois", mixed, self.A).flatten(0, 1))
        (_, i, _), (_, o, _, S) = self.A.shape, mixed.shape
        total = torch.addbmm(mixed.new_zeros(S * o, i), mixed.permute(0, 3, 1, 2).flatten(1, 2), self.A.mT)
        return self.arrangement.from_rows(total.view(S, -1).T)

    def pull_each(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "n p S"]:
        """(Σ_r u_r G_r) Aᵀ of each example."""
        product = torch.einsum("nols,nil->nois", self._mixed(cotangents), self.A)
        return self.arrangement.from_rows(product.flatten(1, 2))

    def with_factors(self, A: Float[Tensor, "n i L"], G: Float[Tensor, "n R o L"]) -> Outer:
        """A block of the same weights."""
        return Outer(A, G, self.parts, transposed=self.arrangement.transposed, scale=self.scale)

    def _explicit(self) -> Rows:
        return Rows(_products(self.A, self.G).flatten(2), self.parts, self.scale, self.arrangement)

    def _channels(self, size: int) -> Iterator[Rows]:
        """The rows of `size` output channels at a time, all in the same memory."""
        R, o, i, _ = self._sizes
        memory = self.A.new_empty(self.num_examples * R * min(size, o) * i)
        for part in chunks(o, size):
            few = self.G[:, :, part].flatten(1, 2)
            rows = memory[: len(few) * few.shape[1] * i].view(len(few), -1, i)
            each_product(few, self.A, out=rows)
            del few
            yield Rows(rows.view(len(rows), R, -1), (), self.scale)

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        """R, o, i, L."""
        return self.num_rows, self.G.shape[2], self.A.shape[1], self.num_positions

    def _mixed(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "n o L S"]:
        """Σ_r u_r G_r."""
        return (self.G.flatten(2).mT @ (cotangents * self.scale)).unflatten(1, self.G.shape[2:])

    def _positions(self) -> list[tuple[Float[Tensor, "n i"], Float[Tensor, "n R o"]]]:
        """(a_l, g_l) of each position."""
        return [(self.A[..., l].contiguous(), self.G[..., l].contiguous()) for l in range(self.num_positions)]

    def _alike(self, other: Outer) -> bool:
        alike = other.num_positions == self.num_positions and other.arrangement == self.arrangement
        return alike and other.scale == self.scale

    def _rows_are_cheaper(self, other: Outer) -> bool:
        """o·i operations per pair of rows versus L·L' (o + i / (R R')), and a little for each pair of positions."""
        if self.num_positions == other.num_positions == 1:
            return False
        o, i = self.G.shape[2], self.A.shape[1]
        pairs = self.num_positions * other.num_positions
        return o * i <= pairs * (o + i / (self.num_rows * other.num_rows) + 4)


# The largest number of entries in the rows of a few output channels and the gradients they are computed from. Small
# caches hold less, but matrix products are slow if their inner dimension is short.
_BUFFER = 1 << 22


def channels_at_a_time(n: int, R: int, o: int, i: int, L: int) -> int:
    """The output channels whose rows are formed at once, for n examples."""
    return min(o, max(1, _BUFFER // (n * R * (i + L))))


def _products(A: Float[Tensor, "n i L"], G: Float[Tensor, "n R o L"]) -> Float[Tensor, "n R o i"]:
    """G_r Aᵀ, with the rows of an example stacked in one product, so that A is not repeated."""
    if A.shape[2] == 1:
        return G * A.mT.unsqueeze(1)
    return each_product(G.flatten(1, 2), A).unflatten(1, G.shape[1:3])
