"""Dense precision: exact, a P × P matrix that is factorised once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FeatureMap
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.memory import require
from dnn2gp.weights.linalg import cholesky, cholesky_solve
from dnn2gp.weights.structures.base import Precision, Structure


@final
@dataclass(frozen=True)
class Dense(Structure):
    """All of Σ̃⁻¹ = V⁻¹ + JᵀΛJ: exact, with memory P² and time P³."""

    name = "dense"
    exact = True

    def posterior_precision(
        self, prior: Precision, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> DensePrecision:
        size, sites = prior.size, root.shape[0] * root.shape[2]
        instead = (
            f"Function space (inference=FunctionSpace()) needs a {sites} × {sites} matrix instead."
            if sites < size
            else "Select fewer layers (subset='last layer'), or use fewer examples with inference=FunctionSpace()."
        )
        require(
            3 * 8 * size**2,
            features.budget(),
            f"A dense precision of {size} weights",
            f"{instead} structure=Kronecker() and Diagonal() are cheap, but far from exact.",
        )
        matrix = features.ggn(inputs, root)
        matrix += prior.dense()
        return DensePrecision(matrix)

    def ggn_eigenvalues(
        self, prior: Precision, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Float[Tensor, " P"]:
        return white_eigenvalues(features.ggn(inputs, root), prior.diagonal())

    def restored(self, state: dict[str, Tensor]) -> DensePrecision:
        return DensePrecision(state["matrix"]) if "matrix" in state else DensePrecision.from_factor(state["factor"])


@final
class DensePrecision(Precision):
    """Σ⁻¹ = L Lᵀ, stored and factorised in float64 regardless of the dtype of the weights."""

    structure = Dense()

    def __init__(self, matrix: Float[Tensor, "P P"]) -> None:
        """A precision matrix, which is factorised on first use."""
        self.matrix = matrix.double()
        self.size = len(matrix)
        self._given = False

    @staticmethod
    def from_factor(factor: Float[Tensor, "P P"]) -> DensePrecision:
        """L Lᵀ of a given L, which may be known to more digits than L Lᵀ has."""
        found = DensePrecision(factor @ factor.T)
        found.factor, found._given = factor, True
        return found

    @cached_property
    def factor(self) -> Float[Tensor, "P P"]:
        """L, the Cholesky factor."""
        return cholesky(self.matrix, "The precision of the weights", "Raise the prior precision δ, or use float64.")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64

    def matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        return self.matrix @ vectors.double()

    def solve(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ v = L⁻ᵀ L⁻¹ v."""
        return cholesky_solve(self.factor, vectors.double())

    def whiten(self, rows: Float[Tensor, "*B P"]) -> Float[Tensor, "*B P"]:
        """J L⁻ᵀ."""
        flat = rows.reshape(-1, self.size).double()
        return torch.linalg.solve_triangular(self.factor, flat.T, upper=False).T.reshape(rows.shape)

    def unwhiten(self, noise: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """L⁻ᵀ ε."""
        return torch.linalg.solve_triangular(self.factor.T, noise.double(), upper=True)

    def diagonal(self) -> Float[Tensor, " P"]:
        return self.matrix.diagonal()

    def inverse_diagonal(self) -> Float[Tensor, " P"]:
        return torch.cholesky_inverse(self.factor).diagonal()

    def log_det(self) -> Float[Tensor, ""]:
        """log |Σ⁻¹| = 2 Σ log L_pp."""
        return 2 * self.factor.diagonal().log().sum()

    def dense(self) -> Float[Tensor, "P P"]:
        return self.matrix

    def double(self) -> DensePrecision:
        return self

    def state(self) -> dict[str, Tensor]:
        return {"factor": self.factor} if self._given else {"matrix": self.matrix}


def white_eigenvalues(matrix: Float[Tensor, "p p"], precision: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """The eigenvalues of V^{½} G V^{½} with V⁻¹ = diag(precision); those that rounding made negative count as zero."""
    scale = precision.double().rsqrt()
    return torch.linalg.eigvalsh(matrix.double() * scale[:, None] * scale).clamp(min=0)
