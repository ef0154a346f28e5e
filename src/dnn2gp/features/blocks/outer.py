"""Outer: J = Σ_l g_l ⊗ a_l, the Jacobian of a weight matrix that meets its input at L positions.

A layer z_l = W a_l + b (Linear at L tokens, a convolution at L patches) has, with g_l = ∂f_r/∂z_l,

    ∂f_r/∂W = Σ_l g_l a_lᵀ ,     ∂f_r/∂b = Σ_l g_l ,

so A (i × L, with a row of ones for the bias) and G (R × o × L) hold what J holds in R × o × i numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks.base import Block
from dnn2gp.features.blocks.rows import Rows

# Numbers that a temporary of `squares` may have: it should stay in the processor's cache.
_CACHED = 1 << 18


@final
class Outer(Block):
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
    ) -> None:
        """The factors; two parts mean weight and bias, and then A ends with the row for the bias."""
        self.A, self.G, self.parts, self.transposed = A, G, parts, transposed
        self.bias = len(parts) == 2

    @property
    def num_examples(self) -> int:
        """n."""
        return self.A.shape[0]

    @property
    def num_rows(self) -> int:
        """R."""
        return self.G.shape[1]

    @property
    def num_positions(self) -> int:
        """L."""
        return self.A.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """Of the factors."""
        return self.A.dtype

    def tensors(self) -> tuple[Tensor, ...]:
        """A and G."""
        return self.A, self.G

    def to(self, dtype: torch.dtype) -> Outer:
        """In another dtype."""
        return self.with_factors(self.A.to(dtype), self.G.to(dtype))

    def take(self, examples: slice) -> Outer:
        """Some of the examples."""
        return self.with_factors(self.A[examples], self.G[examples])

    def joined(self, others: Sequence[Block]) -> Block:
        """All examples; positions must agree, otherwise the rows are joined."""
        same = [other for other in others if isinstance(other, Outer) and other.num_positions == self.num_positions]
        if len(same) < len(others):
            return self._explicit().joined(others)
        return self.with_factors(torch.cat([self.A, *(o.A for o in same)]), torch.cat([self.G, *(o.G for o in same)]))

    def scaled(self, scales: Sequence[Float[Tensor, ""]]) -> Outer:
        """The scale of the weight goes into A, that of the bias into the row of ones."""
        if not self.bias:
            return self.with_factors(self.A * scales[0], self.G)
        return self.with_factors(torch.cat([self.A[:, :-1] * scales[0], self.A[:, -1:] * scales[1]], 1), self.G)

    def compact(self) -> Block:
        """The form that is cheaper to keep and to use: rows, unless they have more than twice the numbers."""
        (_, i, L), (_, R, o, _) = self.A.shape, self.G.shape
        return self._explicit() if L > 1 and R * o * i <= 2 * (L * i + R * L * o) else self

    def rows(self) -> Float[Tensor, "n R p"]:
        """J_r = G_r Aᵀ, for all r of an example in one product."""
        return self._flat(_products(self.A, self.G))

    def add_full(self, other: Block, total: Float[Tensor, "n R m Q"]) -> None:
        """(A A'ᵀ) ∘ (G G'ᵀ) for one position; else the cheaper of the rows and the sum over pairs of positions."""
        if not isinstance(other, Outer) or self._rows_are_cheaper(other):
            return self._explicit().add_full(other, total)
        flat = total.view(self.num_examples, self.num_rows, other.num_examples * other.num_rows)
        for left_a, left_g in self._positions():
            for right_a, right_g in other._positions():
                inner = (left_a @ right_a.T).repeat_interleave(other.num_rows, 1)
                outer = left_g.flatten(0, 1) @ right_g.flatten(0, 1).T
                flat.addcmul_(outer.view_as(flat), inner.unsqueeze(1))

    def add_trace(self, other: Block, total: Float[Tensor, "n m"]) -> None:
        """(A A'ᵀ) ∘ (Σ_r G_r G'_rᵀ) for one position; else as in `add_full`."""
        if not isinstance(other, Outer) or self._rows_are_cheaper(other):
            return self._explicit().add_trace(other, total)
        for left_a, left_g in self._positions():
            for right_a, right_g in other._positions():
                total.addcmul_(left_a @ right_a.T, left_g.flatten(1) @ right_g.flatten(1).T)

    def add_diagonal(self, other: Block, total: Float[Tensor, "n m R"]) -> None:
        """(A A'ᵀ) ∘ (G_r G'_rᵀ) for one position; else as in `add_full`."""
        if not isinstance(other, Outer) or self._rows_are_cheaper(other):
            return self._explicit().add_diagonal(other, total)
        for left_a, left_g in self._positions():
            for right_a, right_g in other._positions():
                outer = (left_g.transpose(0, 1) @ right_g.permute(1, 2, 0)).permute(1, 2, 0)
                total.addcmul_(outer, (left_a @ right_a.T).unsqueeze(-1))

    def squares(self) -> Float[Tensor, " p"]:
        """(Σ_r G_r²)ᵀ A² for one position; else the squares of the rows, a few examples at a time."""
        if self.num_positions == 1:
            return self._flat(self.G.square().sum((1, 3)).T @ self.A.square().squeeze(2))
        count = max(1, _CACHED // (self.num_rows * self.size))
        total = self.A.new_zeros(self.G.shape[2], self.A.shape[1])
        for A, G in zip(self.A.split(count), self.G.split(count), strict=True):
            total += torch.linalg.vector_norm(_products(A, G), dim=(0, 1)).square_()
        return self._flat(total)

    def marginal(self, variances: Float[Tensor, " p"]) -> Float[Tensor, "n R R"]:
        """G diag(v A²) Gᵀ for one position; else from the rows."""
        if self.num_positions > 1:
            return self._explicit().marginal(variances)
        weighted = self.A.square().squeeze(2) @ self._matrix(variances.unsqueeze(-1))[..., 0].T
        G = self.G.squeeze(3)
        return (G * weighted.unsqueeze(1)) @ G.mT

    def push(self, vectors: Float[Tensor, "p S"]) -> Float[Tensor, "n R S"]:
        """⟨G_r, v A⟩: J v."""
        matrix = self._matrix(vectors)
        if self.num_positions == 1:
            moved = (self.A.squeeze(2) @ matrix.transpose(0, 1).flatten(1)).view(self.num_examples, *matrix.shape[::2])
        else:
            moved = torch.einsum("ois,nil->nols", matrix, self.A).flatten(1, 2)
        return self.G.flatten(2) @ moved

    def pull(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "p S"]:
        """(Σ_r u_r G_r) Aᵀ, summed over the examples and positions in one product."""
        mixed = self._mixed(cotangents)
        return self._flat_columns(torch.einsum("nols,nil->ois", mixed, self.A))

    def pull_each(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "n p S"]:
        """(Σ_r u_r G_r) Aᵀ of each example."""
        return self._flat_columns(torch.einsum("nols,nil->nois", self._mixed(cotangents), self.A))

    def with_factors(self, A: Float[Tensor, "n i L"], G: Float[Tensor, "n R o L"]) -> Outer:
        """A block of the same weights."""
        return Outer(A, G, self.parts, transposed=self.transposed)

    def _explicit(self) -> Rows:
        return Rows(self.rows(), self.parts)

    def _mixed(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "n o L S"]:
        """Σ_r u_r G_r."""
        return (self.G.flatten(2).mT @ cotangents).unflatten(1, self.G.shape[2:])

    def _positions(self) -> list[tuple[Float[Tensor, "n i"], Float[Tensor, "n R o"]]]:
        """(a_l, g_l) of each position."""
        return [(self.A[..., l].contiguous(), self.G[..., l].contiguous()) for l in range(self.num_positions)]

    def _rows_are_cheaper(self, other: Outer) -> bool:
        """o·i operations a pair of rows against L·L' (o + i / (R R')), and a little for each pair of positions."""
        if self.num_positions == other.num_positions == 1:
            return False
        o, i = self.G.shape[2], self.A.shape[1]
        pairs = self.num_positions * other.num_positions
        return o * i <= pairs * (o + i / (self.num_rows * other.num_rows) + 4)

    def _matrix(self, vectors: Float[Tensor, "p S"]) -> Float[Tensor, "o i S"]:
        """Vectors over the block's weights as matrices o × i (with the bias as the last column)."""
        o, S = self.G.shape[2], vectors.shape[1]
        if not self.bias:
            return vectors.view(-1, o, S).transpose(0, 1) if self.transposed else vectors.view(o, -1, S)
        weight, bias = vectors.split([self.size - o, o])
        return torch.cat([weight.view(o, -1, S), bias.view(o, 1, S)], 1)

    def _flat(self, matrices: Float[Tensor, "*B o i"]) -> Float[Tensor, "*B p"]:
        """Matrices o × i as vectors over the block's weights: the inverse of `_matrix`."""
        if not self.bias:
            return (matrices.mT if self.transposed else matrices).flatten(-2)
        return torch.cat([matrices[..., :-1].flatten(-2), matrices[..., -1]], -1)

    def _flat_columns(self, matrices: Float[Tensor, "*B o i S"]) -> Float[Tensor, "*B p S"]:
        return self._flat(matrices.movedim(-1, 0)).movedim(0, -1)


def _products(A: Float[Tensor, "n i L"], G: Float[Tensor, "n R o L"]) -> Float[Tensor, "n R o i"]:
    """G_r Aᵀ, with the rows r of an example below one another in one product; A is not repeated for them."""
    if A.shape[2] == 1:
        return G * A.mT.unsqueeze(1)
    return (G.flatten(1, 2) @ A.mT).unflatten(1, G.shape[1:3])
