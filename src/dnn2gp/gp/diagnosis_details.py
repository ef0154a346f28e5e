"""Details of a diagnosis that cost more than a prediction: gradient, curvature, and the agreement of the two spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dnn2gp.features import NetworkFeatures
from dnn2gp.gp.finding import BAD, NOTE, Finding, graded
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.minimum import at_minimum
from dnn2gp.gp.moved import spread
from dnn2gp.inference import FunctionSpace, LinearModel
from dnn2gp.support.randomness import normal
from dnn2gp.weights.expansion import Expansion


@final
@dataclass(frozen=True)
class Details:
    """How well the approximations behind a GP hold at the weights of its network."""

    relative_gradient: float
    """‖∇ℓ̄‖ at the weights, relative to the sum of the norms of its parts (data and prior); 0 at a minimum."""
    step_bound: float
    """√(∇ℓ̄ᵀ Σ̃ ∇ℓ̄): how far one Gauss-Newton step moves any output at most, in posterior standard deviations."""
    curvature_gap: float | None
    """‖Hessian − GGN‖ / ‖GGN‖ (Frobenius, Hutchinson estimate); None where it is not defined."""
    smallest_noise_precision: float
    """The smallest eigenvalue of Λ on its range, over the data."""
    spaces_gap: float
    """How much weight space and function space differ on a subset of the data, see `spaces_gap`."""
    precise: bool
    """Whether the weights are float64."""
    exact: bool
    """Whether the posterior is exact rather than approximated by a structure."""

    @staticmethod
    def of(gp: GaussianProcess, num_probes: int, subset: int, generator: torch.Generator) -> Details:
        """Measured on all data; the spaces are compared on at most `subset` examples."""
        model = _at_network(gp)
        expansion, gradient = model.expansion, model.gradient
        bound = (gradient @ gp.inference.covariance_matmul(gradient[:, None])[:, 0]).clamp(min=0).sqrt()
        _, few = spread(gp.model.expansion, subset)
        return Details(
            relative_gradient=model.relative_gradient(),
            step_bound=bound.item(),
            curvature_gap=_curvature_gap(expansion, num_probes, generator),
            smallest_noise_precision=torch.linalg.svdvals(gp.model.expansion.root).square().min().item(),
            spaces_gap=spaces_gap(LinearModel(few, gp.model.prior), generator),
            precise=expansion.anchor.dtype == torch.float64,
            exact=gp.inference.exact,
        )

    @property
    def findings(self) -> list[Finding]:
        """The details in sentences. Only the agreement of the spaces counts for the verdict."""
        return [self._minimum(), self._curvature(), self._spaces()]

    def _minimum(self) -> Finding:
        is_minimum = at_minimum(self.relative_gradient, self.step_bound, exact=self.exact)
        reading = (
            f"The network is {'' if is_minimum else 'not '}at a minimum of its loss: the gradient is "
            f"{self.relative_gradient:.2g} of its parts, and one Gauss-Newton step moves no output by more than "
            f"{self.step_bound:.2g} posterior standard deviations."
        )
        return Finding("minimum", NOTE, reading)

    def _curvature(self) -> Finding:
        if self.curvature_gap is None:
            reading = (
                "Hessian minus GGN: not available, as gradient features do not approximate the Hessian, or the network "
                "has no second derivative."
            )
        else:
            reading = (
                f"The Hessian differs from the GGN by {self.curvature_gap:.2g} of the GGN: small if the network fits "
                "its data."
            )
        return Finding("curvature", NOTE, reading)

    def _spaces(self) -> Finding:
        good, bad = (1e-6, 1e-3) if self.precise else (1e-2, 1e-1)
        grade = graded(self.spaces_gap, good, bad)
        size = "" if grade != BAD else ", so the numbers of this GP are not reliable"
        reading = (
            f"Weight space and function space differ by {self.spaces_gap:.1g} on a subset of the data{size}; in exact "
            "arithmetic, they are equal."
        )
        return Finding(
            "spaces", grade, reading, "The problem is ill-conditioned: use network.double(), or raise δ or σ."
        )


def _at_network(gp: GaussianProcess) -> LinearModel:
    """The linear model with its sites at the weights of the network."""
    expansion, prior = gp.model.expansion, gp.model.prior
    features = expansion.features
    if expansion.moved is None or expansion.targets is None or not isinstance(features, NetworkFeatures):
        return gp.model
    own = Expansion.gauss_newton(features, expansion.inputs, expansion.targets, gp.likelihood)
    return LinearModel.from_laplace(own, prior)


def _curvature_gap(expansion: Expansion, num_probes: int, generator: torch.Generator) -> float | None:
    """‖R‖_F / ‖G‖_F from E‖Rz‖² = ‖R‖²_F, with R = Σ ∇²f·r and G = JᵀΛJ, z ~ N(0, I)."""
    features = expansion.features
    if not isinstance(features, NetworkFeatures):
        return None
    probes = normal((features.num_weights, num_probes), generator, expansion.anchor).to(expansion.anchor.dtype)
    kept = features.vjp(expansion.inputs, expansion.noise_precision() @ features.jvp(expansion.inputs, probes))
    try:
        dropped = features.residual_curvature(expansion.inputs, expansion.residual, probes)
    except RuntimeError as error:
        if "not implemented" not in str(error) and "double backward" not in str(error):
            raise
        return None
    return _ratio(dropped.norm(), kept.norm())


def _ratio(part: Tensor, whole: Tensor) -> float:
    return (part / whole).item() if whole > 0 else 0.0


def spaces_gap(model: LinearModel, generator: torch.Generator) -> float:
    """‖z' − z‖ / ‖z‖ in the norm √(zᵀΣ̃z), that of posterior standard deviations, for a random z.

    z' = Σ̃⁻¹ Σ̃ z, with Σ̃ z by function space and Σ̃⁻¹ = V⁻¹ + JᵀΛJ by the products of weight space.
    """
    expansion, posterior = model.expansion, FunctionSpace().infer(model)
    probe = normal((expansion.features.num_weights, 1), generator, expansion.anchor)
    solved = posterior.covariance_matmul(probe)
    pushed = expansion.features.jvp(expansion.inputs, solved)
    curved = expansion.features.vjp(expansion.inputs, expansion.noise_precision() @ pushed).double()
    gap = model.prior.precision.matmul(solved) + curved - probe
    size = (gap * posterior.covariance_matmul(gap)).sum().clamp(min=0)
    return (size / (probe * solved).sum()).sqrt().item()
