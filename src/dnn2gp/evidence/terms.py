"""The log marginal likelihood of the training data and its gradients, for any inference.

With V⁻¹ the prior precision, g = ∇ℓ̄(w) and Σ̃ the posterior covariance, everything at the anchor w:

    Laplace         log p(D|w) − ½ (w−m)ᵀV⁻¹(w−m) − ½ log |I + SᵀKS|
    linear model    Laplace + ½ gᵀ Σ̃ g

The first is log p(D|w) + log p(w) + P/2 log 2π − ½ log |Σ̃⁻¹|. For a Gaussian likelihood the second is, at any w, the
evidence log N(ỹ | Jm, Λ⁻¹ + K) of the transformed regression; at a minimum (g = 0) the two are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference import Posterior
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import InputError, NotFiniteError
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.structures import DiagonalPrecision


@dataclass(frozen=True)
class Evidence:
    """The log evidence by its terms, in nats."""

    log_likelihood: float
    """log p(D | w)."""
    prior_penalty: float
    """½ (w−m)ᵀ V⁻¹ (w−m)."""
    complexity: float
    """½ log |I + SᵀKS| = ½ (log |Σ̃⁻¹| − log |V⁻¹|)."""
    linear_model: float
    """The evidence of the linear model: exact for a Gaussian likelihood, whether or not w is a minimum."""
    quadratic: bool
    """Whether the loss of all data is quadratic in f (a Gaussian likelihood)."""
    of_step: bool = False
    """Whether it is that of a training step, whose anchor is not a minimum."""
    error: float = 0.0
    """The standard error of `complexity`, and so of the evidence; 0 if inference is exact."""

    @property
    def laplace(self) -> float:
        """The Laplace evidence at the anchor."""
        return self.log_likelihood - self.prior_penalty - self.complexity

    @property
    def correction(self) -> float:
        """½ gᵀ Σ̃ g, zero at a minimum."""
        return self.linear_model - self.laplace

    @property
    def value(self) -> float:
        """`linear_model` for a Gaussian likelihood or a training step, otherwise `laplace`."""
        return self.linear_model if self.quadratic or self.of_step else self.laplace

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        """The terms and their sum."""
        terms = f"{self.log_likelihood:.2f} fit − {self.prior_penalty:.2f} prior − {self.complexity:.2f} complexity"
        correction = f" + {self.correction:.2f} correction" if self.quadratic or self.of_step else ""
        error = f" ± {self.error:.2g}" if self.error else ""
        return f"log evidence {self.value:.2f}{error} = {terms}{correction}"


@dataclass(frozen=True, eq=False)
class EvidenceGradient:
    """∂ log evidence / ∂δ for each weight, and ∂ log evidence / ∂σ in the shape of σ.

    σ is None unless the likelihood is Gaussian, the features are those of Gauss-Newton, and σ is the noise of all the
    data (it is not if the GP was conditioned on data with a different likelihood).
    """

    prior_precision: Float[Tensor, " P"]
    sigma: Tensor | None
    layout: Layout
    log_precision: float
    """∂ log evidence / ∂ log c for a prior precision c δ: Σ_p δ_p ∂/∂δ_p, but with a stated `error`."""
    error: float
    """The error of `log_precision`; 0 if inference is exact."""

    def scalar(self) -> Float[Tensor, ""]:
        """With respect to one δ shared by all weights."""
        return self.prior_precision.sum()

    def per_layer(self) -> Float[Tensor, " L"]:
        """With respect to one δ per layer, in the order of `layout.layers`."""
        return self.layout.sum_by_layer(self.prior_precision)


def evidence(posterior: Posterior) -> Evidence:
    """The log marginal likelihood of the data of a posterior."""
    model = posterior.model
    log_likelihood = model.expansion.log_likelihood.item()
    penalty = 0.5 * model.prior.squared_distance(model.expansion.anchor).item()
    complexity = 0.5 * posterior.log_det_ratio().item()
    if model.expansion.quadratic and posterior.moves:  # with a small noise, the terms are large and nearly cancel
        linear = model.expansion.site_constant() - complexity - 0.5 * posterior.least_squares[1]
    else:
        linear = log_likelihood - penalty - complexity + 0.5 * (model.gradient @ posterior.step).item()
    error = 0.5 * posterior.log_det_error
    found = Evidence(log_likelihood, penalty, complexity, linear, model.expansion.quadratic, model.of_step, error)
    if not isfinite(found.linear_model):
        raise NotFiniteError(f"The {found} is not finite. Use float64, or a larger prior precision δ or noise σ.")
    return found


def evidence_gradient(posterior: Posterior, likelihood: Likelihood, layout: Layout) -> EvidenceGradient:
    """Gradients of `Evidence.value`, at fixed weights and features.

    ∂/∂δ_p = ½ [ 1/δ_p − Σ̃_pp − (u_p − m_p)² ], u = μ for a Gaussian likelihood, else the anchor w;
    ∂/∂log c = ½ [ d_eff − (u − m)ᵀV⁻¹(u − m) ] for c δ, d_eff = tr (I − V⁻¹Σ̃);
    ∂/∂λ   = ½ [ 1/λ − (ỹ − Jμ)² − (J Σ̃ Jᵀ) ] for each datum and output, λ = σ⁻².
    """
    prior = posterior.model.prior
    if not isinstance(prior.precision, DiagonalPrecision):
        raise InputError(
            "The gradient with respect to δ is defined for a diagonal prior; this one is "
            f"{prior.precision.structure.name}."
        )
    quadratic = posterior.model.expansion.quadratic
    mean = posterior.model.expansion.anchor.double() - (posterior.step if quadratic else 0.0)
    squares, precision = (mean - prior.mean.double()).square(), prior.precision.values.double()
    gradient = 0.5 * (precision.reciprocal() - posterior.weight_variances() - squares)
    count, error = posterior.effective_dimension()
    slope = 0.5 * (count - (precision * squares).sum().item())
    return EvidenceGradient(gradient, _sigma_gradient(posterior, likelihood), layout, slope, 0.5 * error)


def _sigma_gradient(posterior: Posterior, likelihood: Likelihood) -> Tensor | None:
    """∂/∂σ by the chain rule λ = σ⁻², summed to the shape of σ."""
    expansion = posterior.model.expansion
    if not expansion.quadratic or not isinstance(likelihood, GaussianLikelihood) or not _made_by(likelihood, expansion):
        return None
    precision = expansion.root.diagonal(dim1=1, dim2=2).double().square()
    latent = posterior.latent(expansion.features, expansion.inputs)
    misfit = -expansion.residual.double() / precision - latent.shift.double()
    variances = latent.covariance.diagonal(dim1=1, dim2=2).double()
    by_precision = 0.5 * (precision.reciprocal() - misfit.square() - variances)
    by_sigma = by_precision * -2 * precision**1.5
    found = by_sigma.sum_to_size(likelihood.sigma.shape)
    return found if likelihood.per_example else expansion.team.sum(found)


def _made_by(likelihood: GaussianLikelihood, expansion: Expansion) -> bool:
    """Whether the sites of all the data have the noise of this likelihood (which does not depend on f)."""
    if likelihood.per_example and len(likelihood.sigma) != len(expansion.root):
        return False
    same = torch.equal(likelihood.noise_precision_root(torch.zeros_like(expansion.residual)), expansion.root)
    return expansion.team.smallest(float(same)) == 1
