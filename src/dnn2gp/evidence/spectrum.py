"""The evidence for any single δ and σ from one eigendecomposition.

With Φ = SᵀJ V^{½} of M sites and P weights, prior and noise as in the linear model, and λ the eigenvalues of ΦΦᵀ or of
ΦᵀΦ, whichever the inference computes, a prior V/c and a noise of s²Λ⁻¹ give

    log |I + SᵀKS| = Σᵢ log(1 + λᵢ / (c s²))

and for a Gaussian likelihood, with ỹ the transformed outputs in units of the noise and zᵢ the eigenvectors,

    log N(ỹ | 0, s²I + ΦΦᵀ/c) = −½ Σᵢ [ (zᵢᵀỹ)² / (s² + λᵢ/c) + log(s² + λᵢ/c) + log 2π ]

so that one point of the curve in δ = c δ₀ and σ = s σ₀ costs O(min(M, P)), including the gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.evidence.function import EvidenceFunction, positive
from dnn2gp.inference import Decomposition, Inference, LinearModel
from dnn2gp.support.errors import InputError
from dnn2gp.weights.expansion import Expansion

_GRID = 65
# The largest number of entries in a temporary: one for each eigenvalue and each pair of c and s.
_NUMBERS = 1 << 19


@final
class Spectrum(EvidenceFunction):
    """The evidence as a function of one c and one s."""

    num_precisions = 1
    decomposition: Decomposition | None = None
    """What it was computed from."""

    def __init__(
        self,
        eigenvalues: Float[Tensor, " n"],
        log_likelihood: float,
        penalty: float,
        noise: Noise | None,
        weights: Float[Tensor, " n"] | None = None,
    ) -> None:
        """From λ, log p(D|w), wᵀV⁻¹w, and what a Gaussian likelihood adds; `weights`: how often each λ counts."""
        self.eigenvalues, self.log_likelihood, self.penalty, self.noise = eigenvalues, log_likelihood, penalty, noise
        self.weights = torch.ones_like(eigenvalues) if weights is None else weights
        self.num_noises = 0 if noise is None else 1

    @staticmethod
    def of(model: LinearModel, inference: Inference, *, at_weights: bool = False) -> Spectrum:
        """The evidence of a linear model with a diagonal prior of mean zero, as the inference computes it.

        `at_weights`: the Laplace evidence for a Gaussian likelihood too, with the weights where they are, instead of
        that of the linear model, whose weights move with δ. At a minimum, their values and gradients are the same.
        """
        expansion = check_plain_prior(model)
        found = inference.decomposition(model)
        noise: Noise | None = None
        if expansion.quadratic:
            moves = found.squares is not None and not at_weights
            noise = TransformedNoise.of(expansion, found) if moves else UncorrectedNoise.of(expansion)
        penalty = model.prior.squared_distance(expansion.anchor).item()
        result = Spectrum(found.eigenvalues, expansion.log_likelihood.item(), penalty, noise, found.weights)
        result.decomposition = found
        return result

    def __call__(
        self, precision_scale: Float[Tensor, "..."] | float, noise_scale: Float[Tensor, "..."] | float = 1.0
    ) -> Float[Tensor, "..."]:
        """The log evidence for every pair of c and s, which broadcast against each other."""
        given = positive(precision_scale, "precision_scale"), positive(noise_scale, "noise_scale")
        c, s = torch.broadcast_tensors(*given)
        size = max(1, _NUMBERS // len(self.eigenvalues))
        if c.numel() <= size:
            return self._values(c, s)
        some = zip(c.reshape(-1).split(size), s.reshape(-1).split(size), strict=True)
        return torch.cat([self._values(*pairs) for pairs in some]).reshape(c.shape)

    def _values(self, c: Float[Tensor, "..."], s: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The log evidence of a few pairs at once."""
        if self.noise is not None:
            return self.noise.evidence(self, c, s)
        if bool((s != 1).any()):
            raise InputError("noise_scale: only a Gaussian likelihood has a noise level to tune. Leave it at 1.")
        complexity = 0.5 * self.log_det(c)
        return self.log_likelihood - 0.5 * c * self.penalty - complexity

    def start(self, precision: bool, noise: bool, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """The best point of a grid: the evidence may have more than one maximum."""
        low, high = (log(bound) for bound in bounds)
        one = torch.ones(1, dtype=torch.float64)
        c = torch.linspace(low, high, _GRID, dtype=torch.float64).exp() if precision else one
        s = torch.linspace(low / 2, high / 2, _GRID, dtype=torch.float64).exp() if noise else one
        values = torch.stack([self(c, each) for each in s], 1)
        row, column = divmod(int(values.nan_to_num(nan=-torch.inf).argmax()), len(s))
        return c[row], s[column]

    def degrees_of_freedom(self, precision_scale: float = 1.0, noise_scale: float = 1.0) -> float:
        """γ = Σᵢ λᵢ / (λᵢ + c s²): the number of weights that the data determine."""
        share = self.eigenvalues / (self.eigenvalues + precision_scale * noise_scale**2)
        return (self.weights @ share).item()

    def log_det(self, c: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Σᵢ log(1 + λᵢ / c)."""
        return torch.log1p(self.eigenvalues / c[..., None]) @ self.weights


class Noise(ABC):
    """What a Gaussian likelihood adds: the evidence with noise s σ₀."""

    @abstractmethod
    def evidence(self, spectrum: Spectrum, c: Float[Tensor, "*S"], s: Float[Tensor, "*S"]) -> Tensor:
        """log p(D | c δ₀, s σ₀)."""


@final
@dataclass(frozen=True, eq=False)
class TransformedNoise(Noise):
    """The transformed regression: ỹ by its parts along the eigenvectors zᵢ of ΦΦᵀ, and the remainder."""

    constant: float
    """log |S| − (M/2) log 2π."""
    squares: Float[Tensor, " n"]
    """(zᵢᵀỹ)²."""
    beside: float
    """‖ỹ‖² − Σᵢ (zᵢᵀỹ)²: what no weight can explain."""
    num_sites: int
    """M."""

    @staticmethod
    def of(expansion: Expansion, found: Decomposition) -> TransformedNoise:
        """From the parts of ỹ along the eigenvectors."""
        assert found.squares is not None
        return TransformedNoise(expansion.site_constant(), found.squares, found.beside, expansion.num_sites)

    def evidence(self, spectrum: Spectrum, c: Float[Tensor, "*S"], s: Float[Tensor, "*S"]) -> Tensor:
        """−½ Σᵢ [(zᵢᵀỹ)² / (s² + λᵢ/c) + log(s² + λᵢ/c)], with λ = 0 for the remainder."""
        variances = s[..., None].square() + spectrum.eigenvalues / c[..., None]
        fit = (self.squares / variances).sum(-1) + self.beside / s.square()
        log_det = spectrum.log_det(c * s.square()) + 2 * self.num_sites * s.log()
        return self.constant - 0.5 * (fit + log_det)


@final
@dataclass(frozen=True, eq=False)
class UncorrectedNoise(Noise):
    """The Laplace evidence at w, without gᵀΣ̃g: for a posterior whose mean stays at w."""

    constant: float
    misfit: float
    """‖ỹ − Φw‖²."""
    num_sites: int

    @staticmethod
    def of(expansion: Expansion) -> UncorrectedNoise:
        """From the residuals."""
        return UncorrectedNoise(expansion.site_constant(), expansion.misfit(), expansion.num_sites)

    def evidence(self, spectrum: Spectrum, c: Float[Tensor, "*S"], s: Float[Tensor, "*S"]) -> Tensor:
        """log p(D|w) − ½ c wᵀV⁻¹w − ½ Σᵢ log(1 + λᵢ / (c s²))."""
        fit = self.constant - 0.5 * self.misfit / s.square() - self.num_sites * s.log()
        return fit - 0.5 * c * spectrum.penalty - 0.5 * spectrum.log_det(c * s.square())


def check_plain_prior(model: LinearModel) -> Expansion:
    """The expansion of the model, if its prior is that of Theorem 1."""
    if model.of_step or bool((model.prior.mean != 0).any()):
        raise InputError(
            "The evidence as a function of δ and σ assumes the prior N(0, δ⁻¹I). This GP belongs to a training "
            "step, whose prior is (m_t, V_t). Convert the network instead."
        )
    return model.expansion
