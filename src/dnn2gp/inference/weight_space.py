"""Inference in weight space: the P × P precision of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import Factors, FeatureMap
from dnn2gp.inference.base import Inference, Posterior
from dnn2gp.inference.cost import Cost
from dnn2gp.inference.evidence_parts import Decomposition, GroupedTerms, Groups
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.inference.weight_space_evidence import WeightSpaceTerms, decomposition
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import InputError
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.structures import Dense, Precision, Structure


@final
@dataclass(frozen=True)
class WeightSpace(Inference):
    """Σ̃⁻¹ = V⁻¹ + JᵀΛJ: exact with the structure `Dense()`, an approximation with any other."""

    name = "weight space"
    automatic = True

    structure: Structure = Dense()
    """The structure of Σ̃⁻¹."""

    def options(self) -> dict[str, Any]:
        return {"structure": self.structure.encoded()}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> WeightSpace:
        return cls(**{name: Structure.decoded(value) for name, value in options.items()})

    def cost(self, num_sites: int, num_weights: int) -> Cost:
        """P²(M + P/3) operations and three P × P matrices in float64, for `Dense()`."""
        operations = float(num_weights) ** 2 * (num_sites + num_weights / 3)
        return Cost(self.name, num_weights, operations, 3 * 8 * num_weights**2)

    def infer(self, model: LinearModel) -> WeightSpacePosterior:
        expansion = model.expansion
        precision = self.structure.posterior_precision(
            model.prior.precision, expansion.features, expansion.inputs, expansion.root
        )
        return WeightSpacePosterior(self, model, precision)

    def restored(self, model: LinearModel, state: dict[str, Tensor]) -> WeightSpacePosterior:
        return WeightSpacePosterior(self, model, self.structure.restored(state))

    def with_structure(self, structure: Structure) -> WeightSpace:
        if self.structure not in (Dense(), structure):
            raise InputError(
                f"structure={structure!r} contradicts inference={self!r}. Leave one of the two arguments out."
            )
        return replace(self, structure=structure)

    def decomposition(self, model: LinearModel) -> Decomposition:
        if self.structure == Dense():
            return decomposition(model)
        expansion = model.expansion
        prior = model.prior.precision
        return Decomposition(
            self.structure.ggn_eigenvalues(prior, expansion.features, expansion.inputs, expansion.root)
        )

    def grouped_terms(self, model: LinearModel, groups: Groups, num_noises: int) -> GroupedTerms:
        if self.structure != Dense():
            return super().grouped_terms(model, groups, num_noises)
        return WeightSpaceTerms.of(model, groups, num_noises)


@final
class WeightSpacePosterior(Posterior):
    """N(μ, Σ̃) by its precision Σ̃⁻¹, in whichever structure it has."""

    def __init__(self, method: Inference, model: LinearModel, precision: Precision) -> None:
        """The posterior precision of the model, as `method` computed it."""
        self.method, self.model, self._precision = method, model, precision

    @property
    def description(self) -> str:
        return f"{self._precision.structure.name} posterior in {self.name}"

    @property
    def exact(self) -> bool:
        return self._precision.structure.exact

    def precision(self) -> Precision:
        return self._precision

    def covariance_matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        return self._precision.solve(vectors.double())

    def covariance(self, features: FeatureMap, inputs: Inputs, other: Inputs | None = None) -> Float[Tensor, "N K M K"]:
        return features.kernel_full(inputs, self._precision, other)

    def marginal(self, factors: Factors) -> Float[Tensor, "n K K"]:
        return self._precision.marginal(factors)

    def log_det_ratio(self) -> Float[Tensor, ""]:
        return self._precision.log_det() - self.model.prior.precision.log_det()

    def weight_variances(self) -> Float[Tensor, " P"]:
        return self._precision.inverse_diagonal().double()

    def sample_weights(self, num_samples: int, generator: torch.Generator | None) -> Float[Tensor, "S P"]:
        """w = μ + Σ̃^{½} ε."""
        return Gaussian(self.mean, self._precision).sample(num_samples, generator)

    def conditioned(self, expansion: Expansion) -> WeightSpacePosterior:
        """Σ̃⁻¹ + J'ᵀΛ'J'."""
        precision = self._precision.structure.posterior_precision(
            self._precision, expansion.features, expansion.inputs, expansion.root
        )
        model = LinearModel(self.model.expansion.joined(expansion), self.model.prior)
        return WeightSpacePosterior(self.method, model, precision)

    def state(self) -> dict[str, Tensor]:
        return self._precision.state()
