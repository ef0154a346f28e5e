"""A Gaussian over the weights: the class of the prior, a Laplace approximation, q_t, (m_t, V_t) and the posterior."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.randomness import normal
from dnn2gp.weights.structures import DiagonalPrecision, Precision


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(w | μ, Σ), given by its mean μ and its precision Σ⁻¹."""

    mean: Float[Tensor, " P"]
    precision: Precision

    def __post_init__(self) -> None:
        """Check that the mean and the precision have the same size."""
        if len(self.mean) != self.precision.size:
            raise InputError(
                f"Gaussian: expected a mean and a precision of the same size; got a mean of {len(self.mean)} weights "
                f"but a precision of {self.precision.size}."
            )

    def __repr__(self) -> str:
        return f"Gaussian({len(self.mean)} weights, {self.precision.structure.name} precision)"

    @staticmethod
    def prior(precision: Float[Tensor, " P"]) -> Gaussian:
        """N(w | 0, diag(δ)⁻¹)."""
        return Gaussian(torch.zeros_like(precision), DiagonalPrecision(precision))

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Float[Tensor, "S P"]:
        """w = μ + Σ^{½} ε, ε ~ N(0, I)."""
        num_samples = whole_number("num_samples", num_samples)
        noise = normal((self.precision.size, num_samples), generator, self.mean)
        return (self.mean[:, None] + self.precision.unwhiten(noise)).T.to(self.mean.dtype)

    def squared_distance(self, weights: Float[Tensor, " P"]) -> Float[Tensor, ""]:
        """(w − μ)ᵀ Σ⁻¹ (w − μ), in float64."""
        gap = (weights.double() - self.mean.double())[:, None]
        return (gap * self.precision.matmul(gap)).sum()

    def log_prob(self, weights: Float[Tensor, " P"]) -> Float[Tensor, ""]:
        """−½ [ (w − μ)ᵀ Σ⁻¹ (w − μ) + P log 2π − log |Σ⁻¹| ]."""
        constant = self.precision.size * log(2 * pi) - self.precision.log_det()
        return -0.5 * (self.squared_distance(weights) + constant)

    def kl(self, other: Gaussian) -> Float[Tensor, ""]:
        """KL(self ‖ other) = ½ [ tr(Σ₂⁻¹Σ₁) + (μ₁−μ₂)ᵀΣ₂⁻¹(μ₁−μ₂) − P + log|Σ₁⁻¹| − log|Σ₂⁻¹| ]."""
        if isinstance(other.precision, DiagonalPrecision):
            trace = (other.precision.values.double() * self.precision.inverse_diagonal()).sum()
        elif isinstance(self.precision, DiagonalPrecision):
            trace = (other.precision.diagonal() / self.precision.values.double()).sum()
        else:
            trace = (other.precision.dense() * self.precision.covariance()).sum()
        gap = other.squared_distance(self.mean)
        log_dets = self.precision.log_det() - other.precision.log_det()
        return 0.5 * (trace + gap - self.precision.size + log_dets)

    def natural_parameters(self) -> tuple[Float[Tensor, " P"], Precision]:
        """(Σ⁻¹μ, Σ⁻¹), Eqs. (15)–(18); the paper's η is {Σ⁻¹μ, −½ Σ⁻¹}."""
        return self.precision.matmul(self.mean[:, None])[:, 0], self.precision

    def variances(self) -> Float[Tensor, " P"]:
        """diag(Σ)."""
        return self.precision.inverse_diagonal()
