"""Inference in function space: A = I + SᵀKS over the M sites, with K = J V Jᵀ. Λ⁻¹ never appears."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FactoredJacobian, Factors, FeatureMap, NetworkFeatures, Whitener
from dnn2gp.features.budget.chunked import joined
from dnn2gp.features.budget.plan import Work
from dnn2gp.features.factored_jacobian import KeptFactors
from dnn2gp.inference.base import Cost, Inference, Posterior, cotangent_bytes
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
    SiteBasisPosterior,
    affordable,
    check_rounding,
    decompose_rows,
    loses_digits,
    site_decomposition,
)
from dnn2gp.network.inputs import Inputs, in_parts, num_examples
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import chunks, holding, require
from dnn2gp.support.progress import track
from dnn2gp.support.randomness import normal, own_generator
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.linalg import cholesky, cholesky_solve
from dnn2gp.weights.structures import DiagonalPrecision


@final
@dataclass(frozen=True)
class FunctionSpace(Inference):
    """Σ̃ = V − V JᵀS A⁻¹ SᵀJ V, exact for every likelihood, including softmax with its singular Λ."""

    name = "function space"
    automatic = True

    def cost(self, num_sites: int, num_weights: int) -> Cost:
        """M²(P + M/3) operations and three M × M matrices in float64."""
        operations = float(num_sites) ** 2 * (num_weights + num_sites / 3)
        return Cost(self.name, num_sites, operations, _matrices(num_sites))

    def infer(self, model: LinearModel) -> FunctionSpacePosterior | SiteBasisPosterior:
        """Compute A and factorise it, A = L Lᵀ; by a QR decomposition if A has lost digits that count."""
        _require(model.expansion, model.expansion.num_sites)
        sites = _sites(model.expansion, model.prior.precision.double())
        matrix = sites.gram()
        matrix.diagonal().add_(1)
        norm = matrix.norm().item()
        found: FunctionSpacePosterior | SiteBasisPosterior | None = None
        if not _decompose(model, norm):
            found = FunctionSpacePosterior(self, model, cholesky(matrix, "I + SᵀKS", KNOB), sites)
        del matrix
        if found is None or _decompose(model, norm, found.misfit()):
            found = SiteBasisPosterior.of(self, model, sites)
        check_rounding(found, norm)
        return found

    def restored(self, model: LinearModel, state: dict[str, Tensor]) -> FunctionSpacePosterior | SiteBasisPosterior:
        """Restore L in the memory order of a fresh factor, so that results are bit-identical."""
        _require(model.expansion, model.expansion.num_sites, matrices=1)
        sites = _sites(model.expansion, model.prior.precision.double())
        if "basis" in state:
            return SiteBasisPosterior(self, model, state["basis"], state["factor"], sites)
        return FunctionSpacePosterior(self, model, state["factor"].mT.contiguous().mT, sites)

    def decomposition(self, model: LinearModel) -> Decomposition:
        return decomposition(model)

    def grouped_terms(self, model: LinearModel, groups: Groups, num_noises: int) -> GroupedTerms:
        return FunctionSpaceTerms.of(model, groups)


@final
class FunctionSpacePosterior(Posterior):
    """N(μ, Σ̃) by the Cholesky factor L of A, and Φ = SᵀJ V^{½} of the data by its factors."""

    def __init__(
        self, method: Inference, model: LinearModel, factor: Float[Tensor, "M M"], sites: FactoredJacobian
    ) -> None:
        """L, and Φ with products in float64."""
        self.method, self.model, self.factor, self.sites = method, model, factor, sites
        self.prior_precision: Whitener = sites.precision
        """V⁻¹ in float64."""

    @property
    def description(self) -> str:
        return f"dense posterior in {self.name}"

    def covariance_matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ̃ v = V^{½} (I − Φᵀ A⁻¹ Φ) (V^{½})ᵀ v."""
        white = self.prior_precision.whiten(vectors.double().T).T
        return self.prior_precision.unwhiten(white - self._explained(self.sites.push(white)))

    def covariance(self, features: FeatureMap, inputs: Inputs, other: Inputs | None = None) -> Float[Tensor, "N K M K"]:
        """κ(x, x') − κ(x, X) S A⁻¹ Sᵀ κ(X, x')."""
        columns = inputs if other is None else other
        numbers = [num_examples(each) * features.num_outputs for each in (inputs, columns)]
        result = 12 * numbers[0] * numbers[1]  # in float64, and in the dtype of the network
        reductions = 8 * len(self.factor) * sum(numbers[: 1 if other is None else 2])
        what = f"The covariance of {numbers[0]} × {numbers[1]} outputs, with the kernels between them and the data,"
        require(result + reductions, features.budget(), what, "Pass fewer inputs at a time.")
        with holding(reductions):
            left = self._reduction(features, inputs)
            right = left if other is None else self._reduction(features, other)
        with holding(reductions + result // 3):
            prior = features.kernel_full(inputs, self.prior_precision, other).double()
        if prior.requires_grad or left.requires_grad or right.requires_grad:
            return prior - torch.einsum("nks,mls->nkml", left, right)
        prior.view(*numbers).addmm_(left.flatten(0, 1), right.flatten(0, 1).T, alpha=-1)
        return prior

    def marginal(self, factors: Factors) -> Float[Tensor, "n K K"]:
        """κ(x, x) − κ(x, X) S A⁻¹ Sᵀ κ(X, x) of each example."""
        wide = factors.to(torch.float64)
        reduction = self._reduce(self.prior_precision.whitened(wide).compact())
        return self.prior_precision.marginal(wide) - reduction @ reduction.mT

    def log_det_ratio(self) -> Float[Tensor, ""]:
        """log |A|."""
        return 2 * self.factor.diagonal().log().sum()

    def weight_variances(self) -> Float[Tensor, " P"]:
        """diag(Σ̃) = diag(V) − diag(V JᵀS A⁻¹ SᵀJ V), from pairs of blocks of rows."""
        inverse = torch.cholesky_inverse(self.factor)
        prior = self.model.prior.precision.double()
        explained = torch.zeros(prior.size, dtype=torch.float64, device=self.factor.device)
        for rows, left in self.sites.row_blocks():
            mixed = sum(inverse[rows, columns] @ right for columns, right in self.sites.row_blocks())
            explained += (prior.unwhiten(left.T) * prior.unwhiten(torch.as_tensor(mixed).T)).sum(1)
        return prior.inverse_diagonal().double() - explained

    def sample_weights(self, num_samples: int, generator: torch.Generator | None) -> Float[Tensor, "S P"]:
        """Matheron's rule: w = μ + V^{½} (ζ − Φᵀ A⁻¹ (Φ ζ + ε)), with ζ and ε standard normal."""
        generator = own_generator(generator, self.factor.device)
        prior = normal((self.sites.shape[1], num_samples), generator, self.factor)
        noise = normal((len(self.factor), num_samples), generator, self.factor)
        moves = self.prior_precision.unwhiten(prior - self._explained(self.sites.push(prior) + noise))
        return (self.mean.double()[:, None] + moves).T.to(self.mean.dtype)

    @cached_property
    def least_squares(self) -> tuple[Float[Tensor, " P"], float]:
        """w − μ = V^{½} (z₀ − ΦᵀA⁻¹t) and tᵀA⁻¹t, with t = Sᵀ(ỹ − Jm): nothing here grows with σ⁻² and cancels."""
        outputs = self.model.white_outputs(self.sites)[:, None]
        white = self.model.white_gap()[:, None] - self._explained(outputs)
        return self.prior_precision.unwhiten(white)[:, 0], self._solve(outputs).square().sum().item()

    def misfit(self) -> float:
        """The largest entry of A⁻¹t = Sᵀ(ỹ − Jμ), in units of the noise, for a Gaussian likelihood; 0 for others."""
        if not self.model.expansion.quadratic:
            return 0.0
        return cholesky_solve(self.factor, self.model.white_outputs(self.sites)[:, None]).abs().max().item()

    def conditioned(self, expansion: Expansion) -> Posterior:
        """One more block row of the Cholesky factor: the old block stays as it is."""
        new = _sites(expansion, self.prior_precision)
        old_size, new_size = len(self.factor), new.num_rows
        _require(expansion, old_size + new_size)
        cross = torch.cat([self.sites.cross(block).flatten(0, 1) for _, block in new.blocks()])
        joined = self.model.expansion.joined(expansion)
        model = replace(self.model, expansion=joined)
        gram = new.gram()
        norm = gram.norm().item() + self.factor.square().sum().item()
        if _decompose(model, norm):
            return self.method.infer(model)
        edge = self._solve(cross.T)
        schur = gram - edge.T @ edge
        schur.diagonal().add_(1)
        factor = self.factor.new_zeros(old_size + new_size, old_size + new_size)
        factor[:old_size, :old_size] = self.factor
        factor[old_size:, :old_size] = edge.T
        factor[old_size:, old_size:] = cholesky(schur, "The Schur complement of the new data in I + SᵀKS", KNOB)
        sites = _sites(joined, self.prior_precision, self.sites.joined(new))
        found = FunctionSpacePosterior(self.method, model, factor, sites)
        if _decompose(model, norm, found.misfit()):
            return self.method.infer(model)
        check_rounding(found, norm)
        return found

    def state(self) -> dict[str, Tensor]:
        """The Cholesky factor of A."""
        return {"factor": self.factor}

    def chunk(self, features: FeatureMap, inputs: Inputs, num_rows: int | None = None) -> int:
        """Counts the K × M cross kernel of each test input with the data, its solve and a copy."""

        def white(factors: Factors) -> tuple[Tensor, Factors]:
            wide = factors.to(torch.float64)
            return self.prior_precision.marginal(wide), self.prior_precision.whitened(wide).compact()

        K, count = features.num_outputs if num_rows is None else num_rows, num_examples(inputs)
        structured = features.structured(inputs, self.prior_precision)
        work = Work("The predictive variance", white, (type(self.prior_precision), structured))
        extra = 8 * (3 * K * len(self.factor) + 4 * K**2) + cotangent_bytes(features, num_rows)
        kept = self.sites.kept()  # computed now, if they fit and have not been computed before
        fixed = 8 * len(self.factor) ** 2 + self.sites.kept_bytes + 2 * 8 * count * K**2
        if not kept:  # half of the room is for computing them again
            fixed += max(0, features.budget() - fixed) // 2
        return features.chunk(inputs, num_rows, work, fixed=fixed, extra=extra)

    def _explained(self, sites: Float[Tensor, "M S"]) -> Float[Tensor, "P S"]:
        """Φᵀ A⁻¹ b."""
        return self.sites.pull(cholesky_solve(self.factor, sites))

    def _reduction(self, features: FeatureMap, inputs: Inputs) -> Float[Tensor, "N K M"]:
        """κ(x, X) S L⁻ᵀ."""
        parts = list(chunks(num_examples(inputs), self.chunk(features, inputs)))
        found = (
            self._reduce(features.white_factors(own, self.prior_precision))
            for _, own in track(in_parts(inputs, parts), "cross kernel", len(parts))
        )
        return joined(found, num_examples(inputs))

    def _reduce(self, white: Factors) -> Float[Tensor, "n K M"]:
        cross = self.sites.cross(white)
        return self._solve(cross.flatten(0, 1).T).T.unflatten(0, cross.shape[:2])

    def _solve(self, right: Float[Tensor, "M S"]) -> Float[Tensor, "M S"]:
        """L⁻¹ b."""
        return torch.linalg.solve_triangular(self.factor, right, upper=False)


def _sites(expansion: Expansion, precision: Whitener, kept: KeptFactors | None = None) -> FactoredJacobian:
    """Φ = SᵀJ V^{½} of the data, with products in float64."""
    features, inputs, root = expansion.features, expansion.inputs, expansion.root
    return FactoredJacobian(features, inputs, root, precision, torch.float64, kept, _matrices(expansion.num_sites))


def _decompose(model: LinearModel, norm: float, misfit: float = 1.0) -> bool:
    """Whether to use a QR decomposition, if A has this norm and A⁻¹t entries up to `misfit`."""
    size = SiteBasisPosterior.num_bytes(model.expansion.num_sites, model.expansion.features.num_weights)
    return loses_digits(model, norm, misfit) and affordable(model, norm, size)


def _matrices(size: int, matrices: int = 3) -> int:
    """Bytes of SᵀKS, its Cholesky factor and a copy."""
    return matrices * 8 * size**2


def _require(expansion: Expansion, size: int, matrices: int = 3) -> None:
    """Raise unless so many matrices of the size of the sites fit into the memory budget."""
    weights = expansion.features.num_weights
    instead = (
        f"Weight space (inference=WeightSpace()) needs a {weights} × {weights} matrix instead."
        if weights < size
        else "Use fewer examples, or an approximation: structure=Kronecker(), or subset='last layer'."
    )
    what = f"The kernel matrix of the data ({size} × {size})"
    require(_matrices(size, matrices), expansion.features.budget(), what, instead)


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
    gram = sites.gram()
    if decompose_rows(model, gram.norm().item(), SiteBasisPosterior.num_bytes(*sites.shape)):
        del gram
        return site_decomposition(model, sites)
    if not expansion.quadratic:
        return Decomposition(eigenvalues_of(gram, "SᵀKS"))
    values, vectors = decomposed(gram, "SᵀKS")
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
            raise InputError(
                "per_layer: one δ per layer can be tuned with Gauss-Newton features, but not with gradient features."
            )
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
        require_digits((matrix.detach().norm() / noise.min()).item(), "I + SᵀKS")
        factor = cholesky(matrix, "I + SᵀKS", KNOB)
        white = torch.linalg.solve_triangular(factor, self.outputs[:, None], upper=False)
        return factor.diagonal().log().sum() - 0.5 * noise.log().sum(), white.square().sum()
