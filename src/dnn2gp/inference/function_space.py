"""Inference in function space: A = I + SᵀKS over the M sites, with K = J V Jᵀ. Λ⁻¹ never appears."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FactoredJacobian, Factors, FeatureMap, Whitener
from dnn2gp.features.budget.work import Work
from dnn2gp.inference.base import Cost, Inference
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.network.inputs import Inputs, num_examples, take
from dnn2gp.support.memory import bounded, chunks, require
from dnn2gp.support.progress import track
from dnn2gp.support.randomness import normal, own_generator
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.linalg import cholesky

_KNOB = "Raise the prior precision δ or the noise σ, or use float64."


@final
class FunctionSpace(Inference):
    """Σ̃ = V − V JᵀS A⁻¹ SᵀJ V, exact for every likelihood (softmax's singular Λ included)."""

    name = "function space"

    def __init__(
        self,
        model: LinearModel,
        factor: Float[Tensor, "M M"] | None = None,
        sites: FactoredJacobian | None = None,
    ) -> None:
        """Form and factorise A = L Lᵀ, unless the factor is given."""
        self.model = model
        self.precision = model.prior.precision.double()
        expansion = model.expansion
        _require(expansion, expansion.num_sites)
        self.sites = sites or _sites(expansion, self.precision)
        if factor is None:
            matrix = self.sites.gram()
            matrix.diagonal().add_(1)
            factor = cholesky(matrix, "I + SᵀKS", _KNOB)
        self.factor = factor

    @classmethod
    def cost(cls, num_sites: int, num_weights: int) -> Cost:
        """M²(P + M/3) operations, three M × M matrices in float64."""
        operations = float(num_sites) ** 2 * (num_weights + num_sites / 3)
        return Cost(cls.name, num_sites, operations, 3 * 8 * num_sites**2)

    def covariance_matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ̃ v = V^{½} (I − Φᵀ A⁻¹ Φ) (V^{½})ᵀ v, with Φ = SᵀJ V^{½}."""
        white = self.precision.whiten(vectors.double().T).T
        return self.precision.unwhiten(white - self._explained(self.sites.push(white)))

    def covariance(self, features: FeatureMap, inputs: Inputs, other: Inputs | None = None) -> Float[Tensor, "N K M K"]:
        """κ(x, x') − κ(x, X) S A⁻¹ Sᵀ κ(X, x')."""
        prior = features.kernel_full(inputs, self.precision, other).double()
        left = self._reduction(features, inputs)
        right = left if other is None else self._reduction(features, other)
        return prior - torch.einsum("nks,mls->nkml", left, right)

    @property
    def memory_budget(self) -> int | None:
        """That of the features."""
        return self.sites.memory_budget

    @bounded
    def marginal(self, features: FeatureMap, inputs: Inputs) -> Float[Tensor, "N K K"]:
        """κ(x, x) − κ(x, X) S A⁻¹ Sᵀ κ(X, x) of each example."""
        blocks = []
        for part in track(self._parts(features, inputs), "posterior variances"):
            factors = features.factors(take(inputs, part)).to(torch.float64)
            reduction = self._reduce(self.precision.whitened(factors).compact())
            blocks.append(self.precision.marginal(factors) - reduction @ reduction.mT)
            del factors, reduction
        return torch.cat(blocks)

    def log_det_ratio(self) -> Float[Tensor, ""]:
        """log |A|."""
        return 2 * self.factor.diagonal().log().sum()

    def weight_variances(self) -> Float[Tensor, " P"]:
        """diag(Σ̃) = diag(V) − diag(V JᵀS A⁻¹ SᵀJ V), from pairs of blocks of rows."""
        inverse = torch.cholesky_inverse(self.factor)
        explained = torch.zeros(self.precision.size, dtype=torch.float64, device=self.factor.device)
        for rows, left in self.sites.row_blocks():
            mixed = sum(inverse[rows, columns] @ right for columns, right in self.sites.row_blocks())
            explained += (self.precision.unwhiten(left.T) * self.precision.unwhiten(torch.as_tensor(mixed).T)).sum(1)
        return self.precision.inverse_diagonal().double() - explained

    def sample_weights(self, num_samples: int, generator: torch.Generator | None) -> Float[Tensor, "S P"]:
        """Matheron's rule: w = μ + V^{½} (ζ − Φᵀ A⁻¹ (Φ ζ + ε)), with ζ and ε standard normal."""
        generator = own_generator(generator, self.factor.device)
        prior = normal((self.precision.size, num_samples), generator, self.factor)
        noise = normal((len(self.factor), num_samples), generator, self.factor)
        moves = self.precision.unwhiten(prior - self._explained(self.sites.push(prior) + noise))
        return (self.mean.double()[:, None] + moves).T.to(self.mean.dtype)

    def conditioned(self, expansion: Expansion) -> FunctionSpace:
        """One more block row of the Cholesky factor: the old block is not touched."""
        new = _sites(expansion, self.precision)
        old_size, new_size = len(self.factor), new.num_rows
        _require(expansion, old_size + new_size)
        cross = torch.cat([self.sites.cross(block).flatten(0, 1) for _, block in new.blocks()])
        edge = self._solve(cross.T)
        schur = new.gram() - edge.T @ edge
        schur.diagonal().add_(1)
        factor = self.factor.new_zeros(old_size + new_size, old_size + new_size)
        factor[:old_size, :old_size] = self.factor
        factor[old_size:, :old_size] = edge.T
        factor[old_size:, old_size:] = cholesky(schur, "The Schur complement of the new data in I + SᵀKS", _KNOB)
        joined = self.model.expansion.joined(expansion)
        sites = _sites(joined, self.precision, self.sites.joined(new))
        return FunctionSpace(LinearModel(joined, self.model.prior), factor, sites)

    def state(self) -> dict[str, Tensor]:
        """The Cholesky factor of A."""
        return {"factor": self.factor}

    @classmethod
    def restored(cls, model: LinearModel, structure: str, state: dict[str, Tensor]) -> FunctionSpace:
        """From the factor, in the order of memory that a fresh one has: results are then the same to the last bit."""
        return cls(model, state["factor"].mT.contiguous().mT)

    def _explained(self, sites: Float[Tensor, "M S"]) -> Float[Tensor, "P S"]:
        """Φᵀ A⁻¹ b."""
        return self.sites.pull(torch.cholesky_solve(sites, self.factor))

    @bounded
    def _reduction(self, features: FeatureMap, inputs: Inputs) -> Float[Tensor, "N K M"]:
        """κ(x, X) S L⁻ᵀ."""
        parts = self._parts(features, inputs)
        found = [
            self._reduce(features.white_factors(take(inputs, part), self.precision))
            for part in track(parts, "cross kernel")
        ]
        return torch.cat(found)

    def _parts(self, features: FeatureMap, inputs: Inputs) -> list[slice]:
        """Chunks of test inputs, counting the K × M cross kernel of each with the data, its solve and a copy."""

        def white(factors: Factors) -> tuple[Tensor, Factors]:
            wide = factors.to(torch.float64)
            return self.precision.marginal(wide), self.precision.whitened(wide).compact()

        K, count = features.num_outputs, num_examples(inputs)
        key = type(self.precision), features.structured(inputs, self.precision)
        work = Work("The predictive variance", white, key)
        extra = 8 * (3 * K * len(self.factor) + 4 * K**2)
        kept = self.sites.kept()  # made now, if they fit and were not yet
        fixed = 8 * len(self.factor) ** 2 + self.sites.kept_bytes + 2 * 8 * count * K**2
        if not kept:  # half of the room is for making them again
            fixed += max(0, features.budget() - fixed) // 2
        return list(chunks(num_examples(inputs), features.chunk(inputs, work=work, fixed=fixed, extra=extra)))

    def _reduce(self, white: Factors) -> Float[Tensor, "n K M"]:
        cross = self.sites.cross(white)
        return self._solve(cross.flatten(0, 1).T).T.unflatten(0, cross.shape[:2])

    def _solve(self, right: Float[Tensor, "M S"]) -> Float[Tensor, "M S"]:
        """L⁻¹ b."""
        return torch.linalg.solve_triangular(self.factor, right, upper=False)


def _sites(
    expansion: Expansion, precision: Whitener, kept: list[tuple[slice, Factors]] | None = None
) -> FactoredJacobian:
    """Φ = SᵀJ V^{½} of the data, with products in float64."""
    features, inputs, root = expansion.features, expansion.inputs, expansion.root
    return FactoredJacobian(features, inputs, root, precision, torch.float64, kept, _matrices(expansion.num_sites))


def _matrices(size: int) -> int:
    """Bytes of SᵀKS, its Cholesky factor and a copy."""
    return 3 * 8 * size**2


def _require(expansion: Expansion, size: int) -> None:
    """Raise unless three matrices of the size of the sites fit into the budget."""
    weights = expansion.features.num_weights
    instead = (
        f"Weight space (inference=WeightSpace) needs a {weights} × {weights} matrix instead."
        if weights < size
        else "Use fewer of the data, or freeze layers (requires_grad_(False)) with inference=WeightSpace."
    )
    what = f"The kernel matrix of the data ({size} × {size})"
    require(_matrices(size), expansion.features.budget(), what, instead)
