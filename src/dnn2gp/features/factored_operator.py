"""Φ = SᵀJ V^{½} as a linear operator of the `linear_operator` package."""

from __future__ import annotations

import torch
from linear_operator import LinearOperator
from torch import Tensor

from dnn2gp.features.factored_jacobian import FactoredJacobian


class FactoredOperator(LinearOperator):
    """Φ (M × P), or its transpose, by the products of a `FactoredJacobian`; `Φ @ v`, `Φ.mT @ u` and what is built on
    them. Its values do not carry gradients."""

    def __init__(self, anchor: Tensor, *, factored: FactoredJacobian, transposed: bool = False) -> None:
        """The operator of `factored`; `anchor` are the weights, the one tensor that stands for it."""
        super().__init__(anchor, factored=factored, transposed=transposed)
        self.anchor, self.factored, self.transposed = anchor, factored, transposed

    @staticmethod
    def of(factored: FactoredJacobian) -> FactoredOperator:
        """The operator Φ."""
        return FactoredOperator(factored.features.anchor, factored=factored)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the products."""
        return self.factored.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.factored.device

    def _size(self) -> torch.Size:
        shape = self.factored.shape
        return torch.Size(reversed(shape)) if self.transposed else shape

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self._product(rhs, self.transposed)

    def _t_matmul(self, rhs: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._product(rhs, not self.transposed)

    def _product(self, rhs: Tensor, transposed: bool) -> Tensor:
        columns = rhs.unsqueeze(-1) if rhs.ndim == 1 else rhs
        flat = columns.movedim(-2, 0).flatten(1)  # a batch of matrices as one with more columns
        result = self.factored.pull(flat) if transposed else self.factored.push(flat)
        result = result.unflatten(1, (*columns.shape[:-2], columns.shape[-1])).movedim(0, -2)
        return result.squeeze(-1) if rhs.ndim == 1 else result

    def _transpose_nonbatch(self) -> FactoredOperator:
        return FactoredOperator(self.anchor, factored=self.factored, transposed=not self.transposed)

    def to_dense(self) -> Tensor:
        """The matrix itself."""
        dense = self.factored.dense()
        return dense.T if self.transposed else dense
