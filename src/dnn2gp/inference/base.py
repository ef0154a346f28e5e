"""What every way of doing inference in the linear model must answer; all of them must agree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FeatureMap
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.memory import readable
from dnn2gp.weights.expansion import Expansion


@dataclass(frozen=True)
class Cost:
    """What one way of inference costs: the side of its matrix, operations, and bytes."""

    space: str
    size: int
    operations: float
    bytes: int

    def __str__(self) -> str:
        """One line for people."""
        matrix = f"a {self.size} × {self.size} matrix"
        return f"{self.space}: {matrix}, {self.operations:.2g} operations, {readable(self.bytes)}"


class Inference(ABC):
    """The posterior p(w | D̃) = N(μ, Σ̃) of a linear model, answered in weight space or in function space."""

    name: ClassVar[str]
    kinds: ClassVar[dict[str, type[Inference]]] = {}
    """Every way of inference by its name, for reading files."""

    model: LinearModel

    @abstractmethod
    def __init__(self, model: LinearModel) -> None:
        """Do what inference in this model needs once."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        Inference.kinds[cls.name] = cls

    @classmethod
    @abstractmethod
    def cost(cls, num_sites: int, num_weights: int) -> Cost:
        """The cost for M sites and P weights."""

    @abstractmethod
    def covariance_matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ̃ v, in float64."""

    @abstractmethod
    def covariance(self, features: FeatureMap, inputs: Inputs, other: Inputs | None = None) -> Float[Tensor, "N K M K"]:
        """J(x) Σ̃ J(x')ᵀ for all pairs: the posterior kernel."""

    @abstractmethod
    def marginal(self, features: FeatureMap, inputs: Inputs) -> Float[Tensor, "N K K"]:
        """J(x) Σ̃ J(x)ᵀ of each example."""

    @abstractmethod
    def log_det_ratio(self) -> Float[Tensor, ""]:
        """log |Σ̃⁻¹| − log |V⁻¹| = log |I + SᵀKS|."""

    @abstractmethod
    def weight_variances(self) -> Float[Tensor, " P"]:
        """diag(Σ̃), in float64."""

    @abstractmethod
    def sample_weights(self, num_samples: int, generator: torch.Generator | None) -> Float[Tensor, "S P"]:
        """w ~ N(μ, Σ̃)."""

    @abstractmethod
    def conditioned(self, expansion: Expansion) -> Inference:
        """The same with more data, expanded at the same anchor."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What was computed, for a file."""

    @classmethod
    @abstractmethod
    def restored(cls, model: LinearModel, structure: str, state: dict[str, Tensor]) -> Inference:
        """The inverse of `state`, without computing anything again."""

    @property
    def structure(self) -> str:
        """The name of the posterior's structure; dense, i.e. exact, unless a user chose another."""
        return "dense"

    @property
    def exact(self) -> bool:
        """Whether mean and covariance are those of the linear model, and not a structure's approximation of them."""
        return True

    @cached_property
    def step(self) -> Float[Tensor, " P"]:
        """Σ̃ ∇ℓ̄(w), the Gauss-Newton step from the anchor to the posterior mean, in float64."""
        return self.covariance_matmul(self.model.gradient[:, None])[:, 0]

    def step_bound(self) -> float:
        """√(gᵀ Σ̃ g), g = ∇ℓ̄(w): no output moves by more posterior standard deviations in the step Σ̃ g.

        |aᵀ Σ̃ g| ≤ √(aᵀ Σ̃ a) √(gᵀ Σ̃ g) for every row a of every Jacobian, by Cauchy and Schwarz.
        """
        moved = self.covariance_matmul(self.model.gradient[:, None])[:, 0]
        return max(0.0, (self.model.gradient @ moved).item()) ** 0.5

    @cached_property
    def mean(self) -> Float[Tensor, " P"]:
        """μ = w − Σ̃ ∇ℓ̄(w)."""
        anchor = self.model.expansion.anchor
        return (anchor.double() - self.step).to(anchor.dtype)
