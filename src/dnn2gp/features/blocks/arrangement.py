"""The order of the weights of a matrix with a bias in w: first the matrix, row by row, then the bias."""

from __future__ import annotations

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
