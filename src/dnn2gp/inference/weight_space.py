"""Inference in weight space: the P × P precision of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.features import FactoredJacobian, Factors, FeatureMap
from dnn2gp.inference.base import Cost, Inference, Posterior
from dnn2gp.inference.evidence_parts import (
    KNOB,
    Decomposition,
    GroupedTerms,
    Groups,
    decomposed,
    eigenvalues_of,
    require_decomposition,
    require_digits,
    require_matrices,
)
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.inference.orthogonal import (
    WeightTriangle,
    affordable,
    check_rounding,
    decompose_rows,
    gradient_loses_digits,
    loses_digits,
    weight_decomposition,
)
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import InputError
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.linalg import cholesky, cholesky_solve
from dnn2gp.weights.structures import Dense, DensePrecision, DiagonalPrecision, Precision, Structure

_WHAT = "V^{½} JᵀΛJ V^{½}"


@final
@dataclass(frozen=True)
class WeightSpace(Inference):
    """Σ̃⁻¹ = V⁻¹ + JᵀΛJ: exact with the structure `Dense()`, an approximation with any other."""

    name = "weight space"
    automatic = True
    shared = True

    structure: Structure = Dense()
    """The structure of Σ̃⁻¹."""

    def __post_init__(self) -> None:
        Structure.checked("structure", self.structure)

    @property
    def exact(self) -> bool:
        return self.structure.exact

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
        expansion, prior = model.expansion, model.prior.precision
        precision = self.structure.posterior_precision(prior, expansion.features, expansion.inputs, expansion.root)
        return _accurate(WeightSpacePosterior(self, model, precision), model)

    def restored(self, model: LinearModel, state: dict[str, Tensor]) -> WeightSpacePosterior:
        posterior = WeightSpacePosterior(self, model, self.structure.restored(state))
        if "step" in state:
            posterior.least_squares = state["step"], state["misfit"].item()
        return posterior

    def with_structure(self, structure: Structure) -> WeightSpace:
        if self.structure not in (Dense(), structure):
            raise InputError(
                f"structure={structure!r}: it contradicts inference={self!r}. Leave one of the two arguments out."
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
    """N(μ, Σ̃), given by its precision Σ̃⁻¹ in any structure."""

    def __init__(self, method: Inference, model: LinearModel, precision: Precision) -> None:
        """The posterior precision of the model, as `method` computed it."""
        self.method, self.model, self._precision = method, model, precision

    @property
    def description(self) -> str:
        return f"{self._precision.structure.name} posterior in {self.name}"

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
        model = replace(self.model, expansion=self.model.expansion.joined(expansion))
        return _accurate(WeightSpacePosterior(self.method, model, precision), model)

    def state(self) -> dict[str, Tensor]:
        """The precision; where it is known by a factor, also the step and the misfit that belong to it."""
        state = self._precision.state()
        if "factor" in state and self.model.expansion.quadratic:
            step, misfit = self.least_squares
            state |= {"step": step, "misfit": step.new_tensor(misfit)}
        return state


def _accurate(found: WeightSpacePosterior, model: LinearModel) -> WeightSpacePosterior:
    """The same posterior by a QR decomposition, where a Cholesky factorisation would lose digits that count."""
    precision = found.precision()
    if not isinstance(precision, DensePrecision):
        return found
    norm = _norm(precision, model.prior.precision)
    loses = loses_digits(model, norm) or gradient_loses_digits(model, norm)
    if loses and affordable(model, norm, WeightTriangle.num_bytes(precision.size)):
        triangle = WeightTriangle.of(model)
        found = WeightSpacePosterior(found.method, model, triangle.precision)
        if triangle.least_squares is not None:
            found.least_squares = triangle.least_squares
    check_rounding(found, norm)
    return found


def _norm(precision: DensePrecision, prior: Precision) -> float:
    """‖V^{½} Σ̃⁻¹ V^{½}‖, the Frobenius norm of I + ΦᵀΦ."""
    prior = prior.double()
    if isinstance(prior, DiagonalPrecision):
        scale = prior.values.rsqrt()
        parts = (rows * scale for rows in precision.matrix.split(256))  # no second matrix
        squares = torch.cat([part.square().sum(1) for part in parts])
        return (squares @ scale.square()).sqrt().item()
    return prior.whiten(prior.whiten(precision.matrix).T).norm().item()


def decomposition(model: LinearModel) -> Decomposition:
    """The eigenvalues λ of ΦᵀΦ = V^{½} JᵀΛJ V^{½} with eigenvectors uᵢ, and ỹ along zᵢ = Φuᵢ / √λᵢ."""
    expansion, precision = model.expansion, model.prior.precision.double()
    require_decomposition(precision.size, expansion)
    matrix = expansion.features.ggn(expansion.inputs, expansion.root).double()
    if isinstance(precision, DiagonalPrecision):
        scale = precision.values.rsqrt()
        matrix.mul_(scale[:, None]).mul_(scale)
    else:
        matrix = precision.whiten(precision.whiten(matrix).T)
    if decompose_rows(model, matrix.norm().item(), WeightTriangle.num_bytes(precision.size)):
        del matrix
        return weight_decomposition(model)
    if not expansion.quadratic:
        return Decomposition(eigenvalues_of(matrix, _WHAT))
    values, vectors = decomposed(matrix, _WHAT)
    # With e = Φw − ỹ in units of the noise, zᵢᵀe = uᵢᵀΦᵀe / √λᵢ, which is never larger than ‖e‖. A λ that is rounding
    # is raised to the level of rounding: the share of e in its direction then counts as not explained by any weight.
    white, squares = expansion.white_residual(), expansion.misfit()
    limits = torch.finfo(torch.float64)
    values = values.clamp(min=max(limits.tiny, limits.eps * values[-1].item()))
    lengths, size = values.sqrt(), squares**0.5
    sites = FactoredJacobian(
        expansion.features,
        expansion.inputs,
        expansion.root,
        precision,
        torch.float64,
        reserve=4 * 8 * expansion.num_sites**2,
    )
    along = (vectors.T @ sites.pull(white[:, None])[:, 0] / lengths).clamp(-size, size)
    outputs = lengths * (vectors.T @ model.white_anchor()) - along
    beside = max(0.0, squares - along.square().sum().item())
    return Decomposition(values, outputs.square(), beside)


@final
@dataclass(frozen=True, eq=False)
class WeightSpaceTerms(GroupedTerms):
    """Σ̃⁻¹ = Σ_k G_k / s_k² + V⁻¹ diag(c), with G_k = J_kᵀΛ_k J_k of output k, factorised once per evaluation."""

    matrices: Float[Tensor, "K P P"]
    """G_k."""
    pulled: Float[Tensor, "K P"]
    """J_kᵀ r_k."""
    weights: Float[Tensor, " P"]
    precision: Float[Tensor, " P"]
    group: Int[Tensor, " P"]
    """The group of each weight."""

    @staticmethod
    def of(model: LinearModel, groups: Groups, num_noises: int) -> WeightSpaceTerms:
        """One matrix per σ."""
        expansion = model.expansion
        features, inputs = expansion.features, expansion.inputs
        require_matrices((num_noises + 4) * features.num_weights**2, expansion)
        matrices, pulled = [], []
        for own in [slice(None)] if num_noises == 1 else [slice(k, k + 1) for k in range(num_noises)]:
            matrices.append(features.ggn(inputs, expansion.root[:, :, own]).double())
            residual = torch.zeros_like(expansion.residual)
            residual[:, own] = expansion.residual[:, own]
            pulled.append(features.vjp(inputs, residual[..., None])[:, 0].double())
        precision = model.prior.precision.double().diagonal()
        group = groups.of_weights(precision.device)
        return WeightSpaceTerms(torch.stack(matrices), torch.stack(pulled), expansion.anchor.double(), precision, group)

    def terms(
        self, c: Float[Tensor, " L"], s: Float[Tensor, " K"], misfits: Float[Tensor, " K"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The second term as the minimum of Σ_k ‖ỹ_k − Φ_k w‖²/s_k² + wᵀCw over w.

        An error in the step to the minimum therefore enters only squared, and the step need not be differentiated.
        """
        prior, noise = c[self.group] * self.precision, s.square().reciprocal()
        matrix = torch.tensordot(noise, self.matrices, 1) + prior.diag()
        scale = prior.detach().rsqrt()
        require_digits((matrix.detach() * scale[:, None] * scale).norm().item(), "The precision of the weights")
        factor = cholesky(matrix, "The precision of the weights", KNOB)
        half_log_det = factor.diagonal().log().sum() - 0.5 * prior.log().sum()
        gradient = noise @ self.pulled + prior * self.weights
        step = cholesky_solve(factor, gradient[:, None])[:, 0].detach()
        bends = torch.einsum("p,kpq,q->k", step, self.matrices, step)
        left = (misfits - 2 * self.pulled @ step + bends).clamp(min=0)
        return half_log_det, (left * noise).sum() + (prior * (self.weights - step).square()).sum()
