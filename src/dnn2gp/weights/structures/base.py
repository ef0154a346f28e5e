"""A structure: a symmetric positive definite P × P precision that is known by products, never inverted explicitly."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FeatureMap, Whitener
from dnn2gp.network.inputs import Inputs


class Structure(Whitener):
    """The precision Σ⁻¹ of a Gaussian over the weights, with the products that inference needs.

    A new structure is one file: these methods, and one line in the contract tests.
    """

    name: ClassVar[str]
    exact: ClassVar[bool]
    """Whether every V⁻¹ + JᵀΛJ is of this structure, so that the posterior mean (a Gauss-Newton step) is exact too."""

    size: int
    kinds: ClassVar[dict[str, type[Structure]]] = {}
    """Every structure by its name, for reading files."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        Structure.kinds[cls.name] = cls

    @classmethod
    @abstractmethod
    def from_ggn(
        cls, prior: Structure, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Structure:
        """Σ̃⁻¹ = V⁻¹ + Σᵢ φᵢ Λᵢ φᵢᵀ in this structure, Λ = S Sᵀ."""

    @classmethod
    @abstractmethod
    def ggn_eigenvalues(
        cls, prior: Structure, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Float[Tensor, " P"]:
        """The eigenvalues λ of V^{½} (Σᵢ φᵢ Λᵢ φᵢᵀ) V^{½} in this structure, for a diagonal V; in float64.

        With a prior cV⁻¹ and s²Λ⁻¹ for Λ⁻¹ the log-determinant log |Σ̃⁻¹| − log |V⁻¹| is Σ log(1 + λ / (c s²)).
        """

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
        """Σ⁻¹ as a matrix."""

    @abstractmethod
    def double(self) -> Structure:
        """The same precision in float64, so that its products are in float64 too."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors that define it, for a file."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: dict[str, Tensor]) -> Structure:
        """The inverse of `state`."""

    def block(self, parts: Sequence[slice]) -> Float[Tensor, "p p"]:
        """The entries of Σ⁻¹ for some ranges of weights (for few of them)."""
        index = torch.cat([torch.arange(part.start, part.stop) for part in parts])
        return self.dense()[index[:, None], index]

    def covariance(self) -> Float[Tensor, "P P"]:
        """Σ as a matrix (for small P)."""
        return self.solve(torch.eye(self.size, dtype=torch.float64, device=self.diagonal().device))
