"""The evidence as a function of δ and σ in function space: from M × M kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FactoredJacobian, NetworkFeatures
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
from dnn2gp.support.errors import InputError
from dnn2gp.weights.linalg import cholesky
from dnn2gp.weights.structures import DiagonalPrecision


def decomposition(model: LinearModel) -> Decomposition:
    """The eigenvalues of ΦΦᵀ = SᵀKS, and ỹ along its eigenvectors."""
    expansion = model.expansion
    require_decomposition(expansion.num_sites, expansion)
    sites = FactoredJacobian(
        expansion.features,
        expansion.inputs,
        expansion.root,
        model.prior.precision.double(),
        torch.float64,
        reserve=4 * 8 * expansion.num_sites**2,
    )
    values, vectors = decomposed(sites.gram(), "SᵀKS")
    if not expansion.quadratic:
        return Decomposition(values)
    outputs = sites.push(model.white_anchor()[:, None])[:, 0] - expansion.white_residual()
    return Decomposition(values, (vectors.T @ outputs).square())


@final
@dataclass(frozen=True, eq=False)
class FunctionSpaceTerms(GroupedTerms):
    """A = diag(s²) + Σ_l K_l / c_l, with K_l = SᵀJ_l V_l J_lᵀS of group l, factorised once per evaluation."""

    kernels: Float[Tensor, "L M M"]
    """K_l, in units of the noise σ₀."""
    outputs: Float[Tensor, " M"]
    """ỹ in units of the noise for a Gaussian likelihood; zeros for any other."""

    @staticmethod
    def of(model: LinearModel, groups: Groups) -> FunctionSpaceTerms:
        """One kernel per group of weights."""
        expansion, count = model.expansion, model.expansion.num_sites
        require_matrices((len(groups) + 3) * count**2, expansion)
        precision, features = model.prior.precision.double().diagonal(), expansion.features
        if not isinstance(features, NetworkFeatures):
            raise InputError("One δ per layer is tuned with Gauss-Newton features, not with gradient features.")
        kernels = []
        for group in range(len(groups)):
            own = features.restricted(groups.names(group), expansion.inputs)
            values = torch.cat([precision[groups.layout.ranges[name]] for name in own.network.layout.names])
            prior, reserve = DiagonalPrecision(values), 3 * 8 * count**2
            rows = FactoredJacobian(own, expansion.inputs, expansion.root, prior, torch.float64, reserve=reserve)
            kernels.append(rows.gram())
        outputs = torch.zeros(count, dtype=torch.float64, device=precision.device)
        if expansion.quadratic:
            linear = features.jvp(expansion.inputs, expansion.anchor[:, None]).double()
            outputs = (expansion.root.double().mT @ linear).reshape(-1) - expansion.white_residual()
        return FunctionSpaceTerms(torch.stack(kernels), outputs)

    def terms(
        self, c: Float[Tensor, " L"], s: Float[Tensor, " K"], misfits: Float[Tensor, " K"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        noise = s.square().repeat(len(self.outputs) // len(s))
        matrix = torch.tensordot(c.reciprocal(), self.kernels, 1) + noise.diag()
        factor = cholesky(matrix, "I + SᵀKS", KNOB)
        white = torch.linalg.solve_triangular(factor, self.outputs[:, None], upper=False)
        return factor.diagonal().log().sum() - 0.5 * noise.log().sum(), white.square().sum()
