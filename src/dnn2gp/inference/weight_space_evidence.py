"""The evidence as a function of δ and σ in weight space: from P × P matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.features import FactoredJacobian
from dnn2gp.inference.evidence_parts import (
    KNOB,
    Decomposition,
    GroupedTerms,
    Groups,
    decomposed,
    require_decomposition,
    require_matrices,
)
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.weights.linalg import cholesky


def decomposition(model: LinearModel) -> Decomposition:
    """The eigenvalues λ of ΦᵀΦ = V^{½} JᵀΛJ V^{½} with eigenvectors uᵢ, and ỹ along zᵢ = Φuᵢ / √λᵢ."""
    expansion, precision = model.expansion, model.prior.precision.double()
    require_decomposition(precision.size, expansion)
    matrix = expansion.features.ggn(expansion.inputs, expansion.root).double()
    matrix = precision.whiten(precision.whiten(matrix).T)
    values, vectors = decomposed(matrix, "V^{½} JᵀΛJ V^{½}")
    if not expansion.quadratic:
        return Decomposition(values)
    # With e = Φw − ỹ in units of the noise, zᵢᵀe = uᵢᵀΦᵀe / √λᵢ, which is never larger than ‖e‖. A λ that is rounding
    # is raised to the level of rounding: the share of e in its direction then counts as not explained by any weight.
    white = expansion.white_residual()
    limits = torch.finfo(torch.float64)
    values = values.clamp(min=max(limits.tiny, limits.eps * values[-1].item()))
    lengths, size = values.sqrt(), white.norm().item()
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
    beside = (white.square().sum() - along.square().sum()).clamp(min=0).item()
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
        factor = cholesky(matrix, "The precision of the weights", KNOB)
        half_log_det = factor.diagonal().log().sum() - 0.5 * prior.log().sum()
        gradient = noise @ self.pulled + prior * self.weights
        step = torch.cholesky_solve(gradient[:, None], factor)[:, 0].detach()
        bends = torch.einsum("p,kpq,q->k", step, self.matrices, step)
        left = (misfits - 2 * self.pulled @ step + bends).clamp(min=0)
        return half_log_det, (left * noise).sum() + (prior * (self.weights - step).square()).sum()
