"""Diagonal precision: one number per weight. Exact for the prior; for a posterior it is cheap but far from exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import Factors, FeatureMap
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import NotPositiveDefiniteError
from dnn2gp.weights.structures.base import Precision, Structure


@final
@dataclass(frozen=True)
class Diagonal(Structure):
    """diag(V⁻¹ + JᵀΛJ) alone.

    It drops every correlation between weights: the predictive variances of a convolutional network then differ from the
    exact ones by three quarters or more. It is never chosen for you.
    """

    name = "diagonal"
    exact = False

    def posterior_precision(
        self, prior: Precision, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> DiagonalPrecision:
        values = features.ggn_diagonal(inputs, root) + prior.diagonal()
        return DiagonalPrecision(values.to(features.anchor.dtype))

    def ggn_eigenvalues(
        self, prior: Precision, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Float[Tensor, " P"]:
        """diag(JᵀΛJ) / δ."""
        return features.ggn_diagonal(inputs, root).double() / prior.diagonal().double()

    def restored(self, state: dict[str, Tensor]) -> DiagonalPrecision:
        return DiagonalPrecision(state["values"])


@final
class DiagonalPrecision(Precision):
    """Σ⁻¹ = diag(d), in the dtype of d."""

    structure = Diagonal()

    def __init__(self, values: Float[Tensor, " P"]) -> None:
        """Precisions d > 0."""
        if not (values.isfinite().all() and (values > 0).all()):
            raise NotPositiveDefiniteError(
                f"A diagonal precision must be positive and finite; its smallest entry is {values.min().item():.3g}."
            )
        self.values = values
        self.size = len(values)
        self._scales: dict[tuple[int, int], Float[Tensor, ""] | None] = {}

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        return self.values[:, None] * vectors

    def solve(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        return vectors / self.values[:, None]

    def scale(self, part: slice) -> Float[Tensor, ""] | None:
        """d^{−½} where d is the same number on the whole range."""
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
        return rows * self.values.rsqrt()

    def unwhiten(self, noise: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        return noise * self.values.rsqrt()[:, None]

    def diagonal(self) -> Float[Tensor, " P"]:
        return self.values

    def inverse_diagonal(self) -> Float[Tensor, " P"]:
        return self.values.reciprocal()

    def log_det(self) -> Float[Tensor, ""]:
        return self.values.double().log().sum()

    def dense(self) -> Float[Tensor, "P P"]:
        return torch.diag(self.values.double())

    def block(self, parts: Sequence[slice]) -> Float[Tensor, "p p"]:
        return torch.diag(torch.cat([self.values[part] for part in parts]).double())

    def double(self) -> DiagonalPrecision:
        return DiagonalPrecision(self.values.double())

    def state(self) -> dict[str, Tensor]:
        return {"values": self.values}
