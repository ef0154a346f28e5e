"""What a structure is: a choice of which entries of a posterior precision are kept, and the matrix that results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FeatureMap, Whitener
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.choice import Choice


class Structure(Choice):
    """How the posterior precision Σ̃⁻¹ = V⁻¹ + JᵀΛJ is approximated: `Dense()`, `Kronecker()`, …

    A new structure is one file with the choice and its `Precision`, and one line in the contract tests.
    """

    exact: ClassVar[bool]
    """Whether every V⁻¹ + JᵀΛJ has this structure, so that the posterior mean (a Gauss-Newton step) is exact too."""

    kinds: ClassVar[dict[str, type[Structure]]] = {}

    @abstractmethod
    def posterior_precision(
        self, prior: Precision, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Precision:
        """Σ̃⁻¹ = V⁻¹ + Σᵢ φᵢ Λᵢ φᵢᵀ in this structure, with V⁻¹ = `prior` and Λ = S Sᵀ."""

    @abstractmethod
    def ggn_eigenvalues(
        self, prior: Precision, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Float[Tensor, " P"]:
        """The eigenvalues λ of V^{½} (Σᵢ φᵢ Λᵢ φᵢᵀ) V^{½} in this structure, for a diagonal V, in float64.

        With a prior cV⁻¹ and s²Λ⁻¹ for Λ⁻¹ the log-determinant log |Σ̃⁻¹| − log |V⁻¹| is Σ log(1 + λ / (c s²)).
        """

    @abstractmethod
    def restored(self, state: dict[str, Tensor]) -> Precision:
        """The precision with this `Precision.state`."""


class Precision(Whitener):
    """The precision Σ⁻¹ of a Gaussian over P weights: positive definite, accessed through its products, never inverted.

    As a `Whitener` it also provides a root of Σ: `whiten` and `unwhiten`.
    """

    structure: Structure
    """The structure of this matrix."""
    size: int
    """P."""

    @abstractmethod
    def matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ⁻¹ v."""

    @abstractmethod
    def solve(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ v."""

    @abstractmethod
    def diagonal(self) -> Float[Tensor, " P"]:
        """diag(Σ⁻¹)."""

    @abstractmethod
    def inverse_diagonal(self) -> Float[Tensor, " P"]:
        """diag(Σ)."""

    @abstractmethod
    def log_det(self) -> Float[Tensor, ""]:
        """log |Σ⁻¹|, in float64."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "P P"]:
        """Σ⁻¹ as a matrix, in float64."""

    @abstractmethod
    def double(self) -> Precision:
        """The same precision in float64, so that its products are in float64 too."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors that define the matrix, for a file; `Structure.restored` is the inverse."""

    def block(self, parts: Sequence[slice]) -> Float[Tensor, "p p"]:
        """The rows and columns of Σ⁻¹ that belong to some ranges of weights; by default taken from `dense`."""
        index = torch.cat([torch.arange(part.start, part.stop) for part in parts])
        return self.dense()[index[:, None], index]

    def covariance(self) -> Float[Tensor, "P P"]:
        """Σ as a matrix (for small P)."""
        return self.solve(torch.eye(self.size, dtype=torch.float64, device=self.diagonal().device))
