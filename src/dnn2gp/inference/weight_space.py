"""Inference in weight space: the P × P precision of the weights."""

from __future__ import annotations

from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FeatureMap
from dnn2gp.inference.base import Cost, Inference
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.network.inputs import Inputs
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.structures import Dense, Precision, Structure


@final
class WeightSpace(Inference):
    """Σ̃⁻¹ = V⁻¹ + JᵀΛJ. Exact with a dense structure; with another one, that structure's approximation of it."""

    name = "weight space"

    def __init__(self, model: LinearModel, structure: Structure = Dense(), precision: Precision | None = None) -> None:
        """Form the precision of the posterior, unless it is given."""
        self.model = model
        if precision is None:
            expansion = model.expansion
            precision = structure.posterior_precision(
                model.prior.precision, expansion.features, expansion.inputs, expansion.root
            )
        self.precision = precision

    @classmethod
    def cost(cls, num_sites: int, num_weights: int) -> Cost:
        """P²(M + P/3) operations, three P × P matrices in float64."""
        operations = float(num_weights) ** 2 * (num_sites + num_weights / 3)
        return Cost(cls.name, num_weights, operations, 3 * 8 * num_weights**2)

    @cached_property
    def step(self) -> Float[Tensor, " P"]:
        """Σ̃ ∇ℓ̄(w); zero for an approximate structure, whose mean stays at the anchor as in Eq. (4)."""
        gradient = self.model.gradient[:, None]
        return (self.covariance_matmul(gradient) if self.exact else torch.zeros_like(gradient))[:, 0]

    def covariance_matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ̃ v."""
        return self.precision.solve(vectors.double())

    def covariance(self, features: FeatureMap, inputs: Inputs, other: Inputs | None = None) -> Float[Tensor, "N K M K"]:
        """J Σ̃ J'ᵀ."""
        return features.kernel_full(inputs, self.precision, other)

    def marginal(self, features: FeatureMap, inputs: Inputs) -> Float[Tensor, "N K K"]:
        """J Σ̃ Jᵀ of each example."""
        return features.covariance(inputs, self.precision)

    def log_det_ratio(self) -> Float[Tensor, ""]:
        """log |Σ̃⁻¹| − log |V⁻¹|."""
        return self.precision.log_det() - self.model.prior.precision.log_det()

    def weight_variances(self) -> Float[Tensor, " P"]:
        """diag(Σ̃)."""
        return self.precision.inverse_diagonal().double()

    def sample_weights(self, num_samples: int, generator: torch.Generator | None) -> Float[Tensor, "S P"]:
        """w = μ + Σ̃^{½} ε."""
        return Gaussian(self.mean, self.precision).sample(num_samples, generator)

    def conditioned(self, expansion: Expansion) -> WeightSpace:
        """Σ̃⁻¹ + J'ᵀΛ'J'."""
        precision = self.precision.structure.posterior_precision(
            self.precision, expansion.features, expansion.inputs, expansion.root
        )
        model = LinearModel(self.model.expansion.joined(expansion), self.model.prior)
        return WeightSpace(model, precision=precision)

    def state(self) -> dict[str, Tensor]:
        """The precision."""
        return self.precision.state()

    @classmethod
    def restored(cls, model: LinearModel, structure: str, state: dict[str, Tensor]) -> WeightSpace:
        """From the precision."""
        return cls(model, precision=Structure.kinds[structure]().restored(state))

    @property
    def structure(self) -> str:
        """The structure of the precision."""
        return self.precision.structure.name

    @property
    def exact(self) -> bool:
        """Whether the structure can hold every V⁻¹ + JᵀΛJ."""
        return self.precision.structure.exact
