"""The evidence for any scalar δ and σ from one eigendecomposition.

With Φ = SᵀJ V^{½} of M sites and P weights, prior and noise as the linear model has them, and λ the eigenvalues of ΦΦᵀ
or of ΦᵀΦ, whichever is smaller, a prior V/c and a noise of s²Λ⁻¹ give

    log |I + SᵀKS| = Σᵢ log(1 + λᵢ / (c s²))

and for a Gaussian likelihood, with ỹ the transformed outputs in units of the noise and zᵢ the eigenvectors,

    log N(ỹ | 0, s²I + ΦΦᵀ/c) = −½ Σᵢ [ (zᵢᵀỹ)² / (s² + λᵢ/c) + log(s² + λᵢ/c) + log 2π ]

so that a point of the curve in δ = c δ₀ and σ = s σ₀ costs O(min(M, P)), gradient included.
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
from dnn2gp.features import FactoredJacobian
from dnn2gp.inference import FunctionSpace, choose_space
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.support.errors import InputError, NotPositiveDefiniteError
from dnn2gp.support.memory import require
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.structures import Dense, Structure

_GRID = 65


@final
class Spectrum(EvidenceFunction):
    """One c and one s: O(min(M, P)) a point."""

    num_precisions = 1

    def __init__(
        self, eigenvalues: Float[Tensor, " n"], log_likelihood: float, penalty: float, noise: Noise | None
    ) -> None:
        """From λ, log p(D|w), wᵀV⁻¹w, and what a Gaussian likelihood adds."""
        self.eigenvalues, self.log_likelihood, self.penalty, self.noise = eigenvalues, log_likelihood, penalty, noise
        self.num_noises = 0 if noise is None else 1

    def __call__(
        self, precision_scale: Float[Tensor, "..."] | float, noise_scale: Float[Tensor, "..."] | float = 1.0
    ) -> Float[Tensor, "..."]:
        """The log evidence for every pair of c and s: they broadcast against each other."""
        given = positive(precision_scale, "precision_scale"), positive(noise_scale, "noise_scale")
        c, s = torch.broadcast_tensors(*given)
        if self.noise is not None:
            return self.noise.evidence(self.eigenvalues, self.penalty, c, s)
        if bool((s != 1).any()):
            raise InputError("noise_scale: only a Gaussian likelihood has a noise to tune; leave it at 1.")
        complexity = 0.5 * torch.log1p(self.eigenvalues / c[..., None]).sum(-1)
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
        """γ = Σᵢ λᵢ / (λᵢ + c s²): how many weights the data determine."""
        return (self.eigenvalues / (self.eigenvalues + precision_scale * noise_scale**2)).sum().item()

    @staticmethod
    def of(model: LinearModel, structure: Structure = Dense(), *, at_weights: bool = False) -> Spectrum:
        """That of a linear model with a diagonal prior of mean zero: exact if dense, else a structure's evidence.

        `at_weights`: for a Gaussian likelihood too the Laplace evidence, with the weights where they are, instead of
        that of the linear model, whose weights move with δ. At a minimum their values and gradients are the same.
        """
        expansion = check_plain_prior(model)
        penalty = model.prior.squared_distance(expansion.anchor).item()
        if structure != Dense():
            values = structure.ggn_eigenvalues(
                model.prior.precision, expansion.features, expansion.inputs, expansion.root
            )
            noise: Noise | None = UncorrectedNoise.of(expansion) if expansion.quadratic else None
        else:
            values, noise = (_function_space if choose_space(model) is FunctionSpace else _weight_space)(model)
            noise = UncorrectedNoise.of(expansion) if at_weights and noise is not None else noise
        return Spectrum(values, expansion.log_likelihood.item(), penalty, noise)


class Noise(ABC):
    """What a Gaussian likelihood adds: the evidence with noise s σ₀."""

    @abstractmethod
    def evidence(self, eigenvalues: Tensor, penalty: float, c: Float[Tensor, "*S"], s: Float[Tensor, "*S"]) -> Tensor:
        """log p(D | c δ₀, s σ₀)."""


@final
@dataclass(frozen=True, eq=False)
class TransformedNoise(Noise):
    """The transformed regression: ỹ by its parts along the eigenvectors zᵢ of ΦΦᵀ, and what lies beside all of them."""

    constant: float
    """log |S| − (M/2) log 2π."""
    squares: Float[Tensor, " n"]
    """(zᵢᵀỹ)²."""
    beside: float
    """‖ỹ‖² − Σᵢ (zᵢᵀỹ)²: what no weight can explain. Zero if n = M."""
    num_beside: int
    """M − n."""

    def evidence(self, eigenvalues: Tensor, penalty: float, c: Float[Tensor, "*S"], s: Float[Tensor, "*S"]) -> Tensor:
        """−½ Σᵢ [(zᵢᵀỹ)² / (s² + λᵢ/c) + log(s² + λᵢ/c)], with λ = 0 beside the eigenvectors."""
        variances = s[..., None].square() + eigenvalues / c[..., None]
        explained = (self.squares / variances + variances.log()).sum(-1)
        unexplained = self.beside / s.square() + 2 * self.num_beside * s.log()
        return self.constant - 0.5 * (explained + unexplained)


@final
@dataclass(frozen=True, eq=False)
class UncorrectedNoise(Noise):
    """The Laplace evidence at w, of a structure whose mean stays there: no gᵀΣ̃g."""

    constant: float
    misfit: float
    """‖ỹ − Φw‖²."""
    num_sites: int

    def evidence(self, eigenvalues: Tensor, penalty: float, c: Float[Tensor, "*S"], s: Float[Tensor, "*S"]) -> Tensor:
        """log p(D|w) − ½ c wᵀV⁻¹w − ½ Σᵢ log(1 + λᵢ / (c s²))."""
        log_det = torch.log1p(eigenvalues / (s.square() * c)[..., None]).sum(-1)
        fit = self.constant - 0.5 * self.misfit / s.square() - self.num_sites * s.log()
        return fit - 0.5 * c * penalty - 0.5 * log_det

    @staticmethod
    def of(expansion: Expansion) -> UncorrectedNoise:
        """From the residuals."""
        white = white_residual(expansion)
        return UncorrectedNoise(site_constant(expansion, white), white.square().sum().item(), expansion.num_sites)


def _function_space(model: LinearModel) -> tuple[Float[Tensor, " M"], Noise | None]:
    expansion = model.expansion
    _require(expansion, expansion.num_sites)
    rows = sites(model)
    values, vectors = _eigh(rows.gram(), "SᵀKS")
    if not expansion.quadratic:
        return values, None
    white = white_residual(expansion)
    outputs = rows.push(_white_weights(model)[:, None])[:, 0] - white
    squares = (vectors.T @ outputs).square()
    return values, TransformedNoise(site_constant(expansion, white), squares, 0.0, 0)


def _weight_space(model: LinearModel) -> tuple[Float[Tensor, " P"], Noise | None]:
    expansion, precision = model.expansion, model.prior.precision.double()
    _require(expansion, precision.size)
    matrix = expansion.features.ggn(expansion.inputs, expansion.root).double()
    matrix = precision.whiten(precision.whiten(matrix).T)  # V^{½} JᵀΛJ V^{½}
    values, vectors = _eigh(matrix, "V^{½} JᵀΛJ V^{½}")
    if not expansion.quadratic:
        return values, None
    # With e = Φw − ỹ in units of the noise, zᵢᵀe = uᵢᵀΦᵀe / √λᵢ, which is never larger than ‖e‖. A λ that is rounding
    # is put at the level of rounding: the share of e in its direction is then as good as not explained by any weight.
    white = white_residual(expansion)
    limits = torch.finfo(torch.float64)
    values = values.clamp(min=max(limits.tiny, limits.eps * values[-1].item()))
    lengths, size = values.sqrt(), white.norm().item()
    along = (vectors.T @ sites(model).pull(white[:, None])[:, 0] / lengths).clamp(-size, size)
    outputs = lengths * (vectors.T @ _white_weights(model)) - along
    beside = (white.square().sum() - along.square().sum()).clamp(min=0).item()
    constant = site_constant(expansion, white)
    return values, TransformedNoise(constant, outputs.square(), beside, expansion.num_sites - len(values))


def check_plain_prior(model: LinearModel) -> Expansion:
    """The expansion, unless the prior is not that of Theorem 1."""
    if model.of_step or bool((model.prior.mean != 0).any()):
        raise InputError(
            "The evidence as a function of δ and σ is that of a plain prior N(0, δ⁻¹I); this GP is that of a training "
            "step, whose prior is (m_t, V_t). Convert the network instead."
        )
    return model.expansion


def sites(model: LinearModel) -> FactoredJacobian:
    """Φ = SᵀJ V^{½}, with products in float64."""
    expansion, precision = model.expansion, model.prior.precision.double()
    reserve = 4 * 8 * expansion.num_sites**2
    return FactoredJacobian(
        expansion.features, expansion.inputs, expansion.root, precision, torch.float64, reserve=reserve
    )


def white_residual(expansion: Expansion) -> Float[Tensor, " M"]:
    """S⁻¹ r = Sᵀ(f − y), for a Gaussian likelihood."""
    solved = torch.linalg.solve(expansion.root.double(), expansion.residual.double().unsqueeze(-1))
    return solved.reshape(-1)


def site_constant(expansion: Expansion, white: Float[Tensor, " M"]) -> float:
    """log |S| − (M/2) log 2π = log p(D|w) + ½ ‖S⁻¹r‖²."""
    return (expansion.log_likelihood + 0.5 * white.square().sum()).item()


def _white_weights(model: LinearModel) -> Float[Tensor, " P"]:
    """V^{-½} w, so that Φ V^{-½} w = SᵀJ w."""
    return model.prior.precision.double().diagonal().sqrt() * model.expansion.anchor.double()


def _require(expansion: Expansion, size: int) -> None:
    """The matrix, its eigenvectors and the work space of LAPACK."""
    require(
        4 * 8 * size**2,
        expansion.features.budget(),
        f"The eigendecomposition of a {size} × {size} matrix, for an evidence at any δ",
        "Give δ as a number (prior_precision=1.0), use fewer of the data, or take fewer layers (subset=).",
    )


def _eigh(matrix: Float[Tensor, "n n"], what: str) -> tuple[Float[Tensor, " n"], Float[Tensor, "n n"]]:
    """Eigenvalues, those that rounding made negative as zero, and eigenvectors."""
    if not matrix.isfinite().all():
        raise NotPositiveDefiniteError(
            f"{what} holds NaN or infinity. Look at the network's weights and inputs: its Jacobian overflows."
        )
    values, vectors = torch.linalg.eigh(matrix)
    return values.clamp(min=0), vectors
