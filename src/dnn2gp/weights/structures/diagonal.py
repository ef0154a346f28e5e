"""Diagonal precision: a number a weight. Exact for the prior; for a posterior cheap, but far from the exact GP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import Factors, FeatureMap
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import NotPositiveDefiniteError
from dnn2gp.weights.structures.base import Structure


@final
class Diagonal(Structure):
    """Σ⁻¹ = diag(d).

    As the structure of a *posterior* it drops every correlation between weights: the predictive variances of a
    convolutional network then miss the exact ones by three quarters and more. It is never chosen for you.
    """

    name = "diagonal"
    exact = False

    def __init__(self, values: Float[Tensor, " P"]) -> None:
        """Precisions d > 0."""
        if not (values.isfinite().all() and (values > 0).all()):
            raise NotPositiveDefiniteError(
                f"A diagonal precision must be positive and finite; its smallest entry is {values.min().item():.3g}."
            )
        self.values = values
        self.size = len(values)
        self._scales: dict[tuple[int, int], Float[Tensor, ""] | None] = {}

    @classmethod
    def from_ggn(cls, prior: Structure, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]) -> Diagonal:
        """diag(V⁻¹ + JᵀΛJ)."""
        return cls((features.ggn_diagonal(inputs, root) + prior.diagonal()).to(features.anchor.dtype))

    @classmethod
    def ggn_eigenvalues(
        cls, prior: Structure, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Float[Tensor, " P"]:
        """diag(JᵀΛJ) / δ."""
        return features.ggn_diagonal(inputs, root).double() / prior.diagonal().double()

    def matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """d ∘ v."""
        return self.values[:, None] * vectors

    def solve(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """v / d."""
        return vectors / self.values[:, None]

    @property
    def dtype(self) -> torch.dtype:
        """Of the diagonal."""
        return self.values.dtype

    def scale(self, part: slice) -> Float[Tensor, ""] | None:
        """d^{−½} where d is one number on this range."""
        key = (part.start, part.stop)
        if key not in self._scales:
            values = self.values[part]
            self._scales[key] = values[0].rsqrt() if len(values) and (values == values[0]).all() else None
        return self._scales[key]

    def marginal(self, factors: Factors) -> Float[Tensor, "N R R"]:
        """J diag(d)⁻¹ Jᵀ of each example, layer by layer."""
        wide = factors.to(torch.promote_types(factors.dtype, self.dtype))
        return wide.marginal(self.values.reciprocal().to(wide.dtype))

    def whiten(self, rows: Float[Tensor, "*B P"]) -> Float[Tensor, "*B P"]:
        """J diag(d)^{−½}."""
        return rows * self.values.rsqrt()

    def unwhiten(self, noise: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """d^{−½} ∘ ε."""
        return noise * self.values.rsqrt()[:, None]

    def diagonal(self) -> Float[Tensor, " P"]:
        """d."""
        return self.values

    def inverse_diagonal(self) -> Float[Tensor, " P"]:
        """1 / d."""
        return self.values.reciprocal()

    def log_det(self) -> Float[Tensor, ""]:
        """Σ log d."""
        return self.values.double().log().sum()

    def dense(self) -> Float[Tensor, "P P"]:
        """diag(d)."""
        return torch.diag(self.values.double())

    def block(self, parts: Sequence[slice]) -> Float[Tensor, "p p"]:
        """diag(d) on some ranges."""
        return torch.diag(torch.cat([self.values[part] for part in parts]).double())

    def double(self) -> Diagonal:
        """diag(d) in float64; rows that it whitens become float64."""
        return Diagonal(self.values.double())

    def state(self) -> dict[str, Tensor]:
        """The diagonal."""
        return {"values": self.values}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Diagonal:
        """From the diagonal."""
        return cls(state["values"])
