"""A block: the columns of SᵀJ that belong to one group of weights, for n examples with R rows each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Arrangement:
    """The weights of a layer as one o × i matrix, whose last column is the bias if there is one.

    transposed: the matrix lies in w as i × o (as in x @ W) rather than as o × i (as in nn.Linear); then without a bias.
    """

    o: int
    i: int
    bias: bool = False
    transposed: bool = False

    @property
    def plain(self) -> bool:
        """Whether the matrix, row by row, is already in the order of w."""
        return not (self.bias or self.transposed)

    def matrices(self, vectors: Float[Tensor, "*B p"]) -> Float[Tensor, "*B o i"]:
        """Vectors in the order of w as matrices."""
        if self.bias:
            weight, bias = vectors.split([self.o * (self.i - 1), self.o], -1)
            return torch.cat([weight.unflatten(-1, (self.o, self.i - 1)), bias.unsqueeze(-1)], -1)
        if self.transposed:
            return vectors.unflatten(-1, (self.i, self.o)).mT
        return vectors.unflatten(-1, (self.o, self.i))

    def vectors(self, matrices: Float[Tensor, "*B o i"]) -> Float[Tensor, "*B p"]:
        """The inverse of `matrices`."""
        if self.bias:
            return torch.cat([matrices[..., :-1].flatten(-2), matrices[..., -1]], -1)
        return (matrices.mT if self.transposed else matrices).flatten(-2)

    def by_rows(self, columns: Float[Tensor, "p S"]) -> Float[Tensor, "p S"]:
        """Columns in the order of w as columns in the order of the matrix, row by row."""
        return columns if self.plain else self.matrices(columns.T).flatten(-2).T

    def from_rows(self, columns: Float[Tensor, "*B p S"]) -> Float[Tensor, "*B p S"]:
        """The inverse of `by_rows`."""
        return columns if self.plain else self.vectors(columns.mT.unflatten(-1, (self.o, self.i))).mT


Parts = tuple[slice, ...]


class Block(ABC):
    """J of n examples (R rows each) with respect to the weights of `parts`, stored in a compact form.

    `parts` are ranges of the flat weight vector w; a block's own order of weights is that of its parts, one after the
    other. Products of two blocks are those of the same weights at two sets of examples. A common factor of all entries
    (the standard deviation of the prior) is the number `scale`, which products apply to their results.
    """

    parts: tuple[slice, ...]
    scale: float

    @property
    @abstractmethod
    def num_examples(self) -> int:
        """n."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """R, the rows per example: K for J itself, the columns of S for SᵀJ."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of the stored tensors, and of products."""

    @property
    def size(self) -> int:
        """p, the number of weights of the block."""
        return sum(part.stop - part.start for part in self.parts)

    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The stored tensors."""

    @property
    def bytes(self) -> int:
        """The memory of the stored tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    @property
    def shared_bytes(self) -> int:
        """The part of this memory that does not grow with the number of rows."""
        return 0

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Block:
        """The same in another dtype."""

    @abstractmethod
    def take(self, examples: slice) -> Block:
        """The block of a range of examples."""

    def densest(self) -> Block:
        """A block of this size whose products need the most memory, if that depends on its values."""
        return self

    @abstractmethod
    def joined(self, others: Sequence[Block]) -> Block:
        """The block of these examples, followed by those of the others."""

    @abstractmethod
    def scaled(self, scales: Sequence[float]) -> Block:
        """J V^{½} for a V that is one number (the square of its scale) on each part."""

    @abstractmethod
    def rows(self) -> Float[Tensor, "n R p"]:
        """J itself, in memory."""

    @abstractmethod
    def together(self, other: Block) -> Iterator[tuple[Piece, Piece]]:
        """Pairs of pieces whose products add up to the product of the two blocks. A pair is valid until the next one.

        If `other` is this block, each piece is paired with itself.
        """

    @abstractmethod
    def squares(self) -> Float[Tensor, " p"]:
        """Σ_{n,r} J² of each weight: the diagonal of JᵀJ."""

    def moments(self) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"]]:
        """Σ_{n,r} J and Σ_{n,r} J² of each weight."""
        ones = torch.ones(self.num_examples, self.num_rows, 1, dtype=self.dtype, device=self.tensors()[-1].device)
        return self.pull(ones).squeeze(-1), self.squares()

    @abstractmethod
    def marginal(self, variances: Float[Tensor, " p"]) -> Float[Tensor, "n R R"]:
        """J diag(v) Jᵀ of each example."""

    @abstractmethod
    def push(self, vectors: Float[Tensor, "p S"]) -> Float[Tensor, "n R S"]:
        """J v."""

    @abstractmethod
    def pull(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "p S"]:
        """Jᵀ u, summed over the examples."""

    @abstractmethod
    def pull_each(self, cotangents: Float[Tensor, "n R S"]) -> Float[Tensor, "n p S"]:
        """Jᵀ u of each example separately."""


class Piece(Block):
    """A block that can be multiplied with the piece it is paired with (`Block.together`)."""

    @abstractmethod
    def take(self, examples: slice) -> Piece:
        """The piece of a range of examples."""

    @abstractmethod
    def add_full(self, other: Piece, total: Float[Tensor, "n R m Q"]) -> None:
        """total += J J'ᵀ for all pairs of rows."""

    @abstractmethod
    def add_trace(self, other: Piece, total: Float[Tensor, "n m"]) -> None:
        """total += Σ_r J_r J'_rᵀ for all pairs of examples."""

    @abstractmethod
    def add_diagonal(self, other: Piece, total: Float[Tensor, "n m R"]) -> None:
        """total += J_r J'_rᵀ for all pairs of examples and each row r."""
