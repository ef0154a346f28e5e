"""The posterior where rounding matters: by QR decompositions of Φ instead of Cholesky factors of I + ΦΦᵀ or I + ΦᵀΦ.

With Φ = SᵀJ V^{½}, white residual e = S⁻¹r and white weights z₀ = V^{−½}(w − m), the posterior mean of the linear model
of a Gaussian likelihood solves a least-squares problem for the step w − μ = V^{½}s,

    min over s of ‖Φ s − e‖² + ‖s − z₀‖² ,          with the minimum tᵀA⁻¹t, t = Φz₀ − e = Sᵀ(ỹ − Jm), A = I + ΦΦᵀ.

A small noise σ or prior precision δ makes ‖A‖ large. Forming A loses the digits below ε‖A‖, in units of the noise. A QR
decomposition of [Φ; I] or [Φᵀ; I] loses only those below ε‖Φ‖, because it never squares Φ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FactoredJacobian, Factors, FeatureMap, Whitener
from dnn2gp.inference.base import Inference, Posterior
from dnn2gp.inference.evidence_parts import Decomposition
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.network.inputs import Inputs, in_parts, num_examples
from dnn2gp.support.errors import IllConditionedError
from dnn2gp.support.memory import chunks, readable
from dnn2gp.support.progress import track
from dnn2gp.support.randomness import normal, own_generator
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.linalg import triangle
from dnn2gp.weights.structures import DensePrecision, DiagonalPrecision, Precision

_EPSILON = torch.finfo(torch.float64).eps / 2
# A Cholesky factorisation must not move a mean by more than this number of standard deviations of the noise. The noise
# of other likelihoods is that of a quadratic approximation, so fewer digits of it count.
_MOVED = {True: 2e-7, False: 1e-4}
# A result that may be off by more than this number of standard deviations is refused.
_REFUSED = 1e-3
# Floating-point operations of a decomposition that takes no time.
_QUICK = 1e8


def loses_digits(model: LinearModel, norm: float, misfit: float = 1.0) -> bool:
    """Whether Cholesky loses digits that count, if A has this norm and A⁻¹t entries up to `misfit`."""
    return _EPSILON * norm * max(1.0, misfit) > _MOVED[model.expansion.quadratic]


def gradient_loses_digits(model: LinearModel, norm: float) -> bool:
    """Whether the step Σ̃g does: g = Jᵀr + V⁻¹(w − m) has an error of ε‖Φ‖‖e‖ in units of the prior."""
    if not model.expansion.quadratic:
        return False
    dtype = model.expansion.anchor.dtype
    allowed = 2e-7 if dtype == torch.float64 else _REFUSED
    largest = model.expansion.team.largest(model.expansion.white_residual().abs().max().item())
    return torch.finfo(dtype).eps / 2 * norm**0.5 * largest > allowed


def affordable(model: LinearModel, norm: float, num_bytes: int) -> bool:
    """Whether the QR decomposition fits into the memory budget; raise if not and Cholesky would be wrong."""
    budget = int(model.expansion.team.smallest(model.expansion.features.budget()))
    if num_bytes <= budget:
        return True
    if _EPSILON * norm > _REFUSED:
        raise IllConditionedError(
            f"The data are so informative compared with the prior (‖SᵀKS‖ = {norm:.2g}) that predictions would be off "
            f"by up to {_EPSILON * norm:.1g} standard deviations of the noise. A QR decomposition would be exact, but "
            f"needs {readable(num_bytes)} of a memory budget of {readable(budget)}. Raise memory_budget, the noise σ "
            "or the prior precision δ, or use fewer examples or layers."
        )
    return False


_ACCURATE = {
    False: "Use float64 (network.double(), and data in float64), or a larger noise σ or prior precision δ.",
    True: "Use a larger noise σ or prior precision δ.",
}


def check_rounding(posterior: Posterior, norm: float) -> None:
    """Raise if the rounding of J, in the dtype of the network, moves predictions by more than they may be off.

    Rounded rows Φ + ΔΦ move the posterior mean by Σ̃ ΔΦᵀα with α = Sᵀ(ỹ − Jμ), and ΔΦᵀα, of length up to ε‖Φ‖‖α‖, points
    in a random direction of the P weights; ΔΦ itself changes the variance. No factorisation can mend this.
    """
    expansion = posterior.model.expansion
    dtype = expansion.anchor.dtype
    if not expansion.quadratic:
        return
    largest = expansion.team.largest(posterior.model.white_residual(posterior.step).abs().max().item())
    moved = torch.finfo(dtype).eps / 2 * norm**0.5 * max(1.0, largest) / expansion.features.num_weights**0.5
    if moved > 0.8 * _REFUSED:
        raise IllConditionedError(
            f"With this noise and prior (‖SᵀKS‖ = {norm:.2g}), the rounding of the network's Jacobian in {dtype} moves "
            f"predictions by about {moved:.1g} standard deviations. {_ACCURATE[dtype == torch.float64]}"
        )


@final
@dataclass(frozen=True, eq=False)
class WeightTriangle:
    """L Lᵀ = Σ̃⁻¹, the step w − μ, and tᵀA⁻¹t, from a QR decomposition of [V^{−½}; SᵀJ], block of rows by block."""

    precision: DensePrecision
    least_squares: tuple[Float[Tensor, " P"], float] | None
    """The step and the minimum, for a Gaussian likelihood."""

    @staticmethod
    def num_bytes(num_weights: int) -> int:
        """R with as many rows below it, a copy that LAPACK overwrites, and the matrix."""
        return 5 * 8 * (num_weights + 1) ** 2

    @staticmethod
    def of(model: LinearModel) -> WeightTriangle:
        """The decomposition for a linear model; z₀ and e are one more column beside V^{−½} and SᵀJ."""
        expansion, size = model.expansion, model.expansion.features.num_weights
        root, right = _root(model.prior.precision), _white_residual(expansion)
        gap = expansion.anchor.double() - model.prior.mean.double()
        whole = _triangle(_sites(expansion), right, torch.cat([root, (root @ gap)[:, None]], 1))
        precision = DensePrecision.from_factor(whole[:size, :size].T.contiguous())
        if not expansion.quadratic:
            return WeightTriangle(precision, None)
        step = torch.linalg.solve_triangular(whole[:size, :size], whole[:size, size:], upper=True)[:, 0]
        return WeightTriangle(precision, (step, whole[size, size].square().item()))


def _sites(expansion: Expansion, precision: Whitener | None = None) -> FactoredJacobian:
    """SᵀJ V^{½} with products in float64; V = I by default."""
    features, reserve = expansion.features, WeightTriangle.num_bytes(expansion.features.num_weights)
    return FactoredJacobian(features, expansion.inputs, expansion.root, precision, torch.float64, reserve=reserve)


def _white_residual(expansion: Expansion) -> Float[Tensor, " M"]:
    """e for a Gaussian likelihood, and zeros for others."""
    if expansion.quadratic:
        return expansion.white_residual()
    own = expansion.root.shape[0] * expansion.root.shape[2]
    return torch.zeros(own, dtype=torch.float64, device=expansion.root.device)


def _triangle(sites: FactoredJacobian, right: Float[Tensor, " M"], above: Float[Tensor, "m C"]) -> Float[Tensor, "C C"]:
    """R of rows above, and of the rows of Φ with one more column, a block of rows at a time.

    With several processes, each computes the R of its own rows, and then the R of all these stacked; process 0 has the
    rows above.
    """
    size, team = sites.shape[1], sites.features.team
    waiting = [above if team.rank == 0 else above[:0]]
    for rows, block in sites.row_blocks():
        waiting.append(torch.cat([block, right[rows, None]], 1))
        if sum(map(len, waiting)) > 2 * size:
            waiting = [triangle(torch.cat(waiting))]
    if team.size > 1:
        waiting = [team.gathered(triangle(torch.cat([*waiting, above.new_zeros(size + 1, size + 1)])))]
    return triangle(torch.cat([*waiting, above.new_zeros(size + 1, size + 1)]))


def decompose_rows(model: LinearModel, norm: float, num_bytes: int) -> bool:
    """Whether the eigenvalues of SᵀKS should come from the singular values of Φ.

    Always where this takes no time: an evidence function is evaluated at other δ too, where A is larger.
    """
    M, P = model.expansion.num_sites, model.expansion.features.num_weights
    budget = model.expansion.team.smallest(model.expansion.features.budget())
    quick = M * P * min(M, P) <= _QUICK and num_bytes <= budget
    return quick or (loses_digits(model, norm) and affordable(model, norm, num_bytes))


def site_decomposition(model: LinearModel, sites: FactoredJacobian) -> Decomposition:
    """Φᵀ = QR, and the singular values of Rᵀ with its left singular vectors, which are those of Φ."""
    columns = torch.empty(sites.shape[1], sites.shape[0], dtype=torch.float64, device=sites.device)
    for rows, block in sites.row_blocks():
        columns[:, rows] = block.T
    upper = torch.linalg.qr(columns, mode="r").R
    del columns
    vectors, values, _ = torch.linalg.svd(upper.T, full_matrices=False)
    if not model.expansion.quadratic:
        return Decomposition(values.square())
    outputs = model.white_outputs(sites)
    along = vectors.T @ outputs
    beside = (outputs - vectors @ along).square().sum().item() if len(values) < len(outputs) else 0.0
    return Decomposition(values.square(), along.square(), beside)


def weight_decomposition(model: LinearModel) -> Decomposition:
    """[Φ t] = QR, and the singular values of R without its last column, which has the parts of t."""
    expansion, size = model.expansion, model.expansion.features.num_weights
    sites = _sites(expansion, model.prior.precision.double())
    outputs = model.white_outputs(sites) if expansion.quadratic else _white_residual(expansion)
    whole = _triangle(sites, outputs, outputs.new_zeros(0, size + 1))
    vectors, values, _ = torch.linalg.svd(whole[:size, :size])
    if not expansion.quadratic:
        return Decomposition(values.square())
    along = vectors.T @ whole[:size, size]
    return Decomposition(values.square(), along.square(), whole[size, size].square().item())


def _root(precision: Precision) -> Float[Tensor, "P P"]:
    """V^{−½}, upper triangular."""
    if isinstance(precision, DiagonalPrecision):
        return precision.values.double().sqrt().diag()
    dense = precision if isinstance(precision, DensePrecision) else DensePrecision(precision.dense())
    return dense.factor.T


@final
class SiteBasisPosterior(Posterior):
    """N(μ, Σ̃) by the QR decomposition [Φᵀ; I] = Q R, so that A = RᵀR; with [Q₁; Q₂] = Q, Φᵀ = Q₁R and Q₂ = R⁻¹.

    Σ̃ = V^{½} (I − Q₁Q₁ᵀ) V^{½}, and products with it come from the projection of vectors [v; 0] onto what is orthogonal
    to Q: their lengths have no difference of large numbers in them.
    """

    def __init__(
        self,
        method: Inference,
        model: LinearModel,
        basis: Float[Tensor, "B M"],
        factor: Float[Tensor, "M M"],
        sites: FactoredJacobian,
    ) -> None:
        """Q, L = Rᵀ, and Φ."""
        self.method, self.model, self.basis, self.factor, self.sites = method, model, basis, factor, sites
        self.prior_precision: Whitener = sites.precision

    @staticmethod
    def num_bytes(num_sites: int, num_weights: int) -> int:
        """[Φᵀ; I], Q and a copy."""
        return 3 * 8 * (num_sites + num_weights) * num_sites

    @staticmethod
    def of(method: Inference, model: LinearModel, sites: FactoredJacobian) -> SiteBasisPosterior:
        """The decomposition for a linear model with sites Φ."""
        count, size = sites.shape
        stacked = torch.zeros(size + count, count, dtype=torch.float64, device=sites.device)
        for rows, block in sites.row_blocks():
            stacked[:size, rows] = block.T
        stacked[size:].fill_diagonal_(1)
        basis, upper = torch.linalg.qr(stacked)
        signs = torch.where(upper.diagonal() < 0, -1.0, 1.0).to(upper.dtype)
        factor = (upper * signs[:, None]).T.contiguous()
        return SiteBasisPosterior(method, model, basis.mul_(signs).contiguous(), factor, sites)

    @property
    def description(self) -> str:
        return f"dense posterior in {self.name}"

    def precision(self) -> Precision:
        return WeightTriangle.of(self.model).precision

    def covariance_matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ̃ v = V^{½} (I − Q₁Q₁ᵀ) (V^{½})ᵀ v."""
        white = self.prior_precision.whiten(vectors.double().T).T
        return self.prior_precision.unwhiten(self._projected(white)[: len(white)])

    def covariance(self, features: FeatureMap, inputs: Inputs, other: Inputs | None = None) -> Float[Tensor, "N K M K"]:
        left = self._rows(features, inputs)
        right = left if other is None else self._rows(features, other)
        return torch.einsum("nkp,mlp->nkml", left, right)

    def marginal(self, factors: Factors) -> Float[Tensor, "n K K"]:
        rows = self._projected_rows(self.prior_precision.whitened(factors.to(torch.float64)))
        return rows @ rows.mT

    def log_det_ratio(self) -> Float[Tensor, ""]:
        """log |A|."""
        return 2 * self.factor.diagonal().log().sum()

    def weight_variances(self) -> Float[Tensor, " P"]:
        """diag(Σ̃), from V^{½} (I − Q₁Q₁ᵀ) V^{½}."""
        prior, size = self.model.prior.precision.double(), self.sites.shape[1]
        explained = prior.unwhiten(self.basis[:size]).square().sum(1)
        return prior.inverse_diagonal().double() - explained

    def sample_weights(self, num_samples: int, generator: torch.Generator | None) -> Float[Tensor, "S P"]:
        """Matheron's rule: w = μ + V^{½} ζ', with [ζ'; ε'] the part of standard normal [ζ; ε] orthogonal to Q."""
        generator = own_generator(generator, self.basis.device)
        size = self.sites.shape[1]
        prior = normal((size, num_samples), generator, self.basis)
        noise = normal((len(self.factor), num_samples), generator, self.basis)
        moves = self.prior_precision.unwhiten(self._projected(prior, noise)[:size])
        return (self.mean.double()[:, None] + moves).T.to(self.mean.dtype)

    def conditioned(self, expansion: Expansion) -> Posterior:
        """Computed again with all the data."""
        return self.method.infer(replace(self.model, expansion=self.model.expansion.joined(expansion)))

    def state(self) -> dict[str, Tensor]:
        """Q and Rᵀ."""
        return {"factor": self.factor, "basis": self.basis}

    @cached_property
    def least_squares(self) -> tuple[Float[Tensor, " P"], float]:
        """w − μ = V^{½} (z₀ − Q₁ R⁻ᵀ t), and tᵀA⁻¹t = ‖R⁻ᵀt‖²."""
        anchor = self.model.white_gap()
        solved = torch.linalg.solve_triangular(self.factor, self.model.white_outputs(self.sites)[:, None], upper=False)
        white = anchor[:, None] - self.basis[: len(anchor)] @ solved
        return self.prior_precision.unwhiten(white)[:, 0], solved.square().sum().item()

    def _projected(
        self, white: Float[Tensor, "P S"], noise: Float[Tensor, "M S"] | None = None
    ) -> Float[Tensor, "B S"]:
        """(I − QQᵀ) [v; ε], with ε = 0 by default."""
        count = len(self.factor)
        below = white.new_zeros(count, white.shape[1]) if noise is None else noise
        whole = torch.cat([white, below])
        return whole - self.basis @ (self.basis.T @ whole)

    def _projected_rows(self, white: Factors) -> Float[Tensor, "n K B"]:
        """The rows J(x)V^{½} of each example, projected."""
        rows = white.rows()
        return self._projected(rows.flatten(0, 1).T).T.unflatten(0, rows.shape[:2])

    def _rows(self, features: FeatureMap, inputs: Inputs) -> Float[Tensor, "N K B"]:
        parts = list(chunks(num_examples(inputs), self.chunk(features, inputs)))
        found = []
        for _, own in track(in_parts(inputs, parts), "rows", len(parts)):
            found.append(self._projected_rows(features.white_factors(own, self.prior_precision)))
        return torch.cat(found)
