"""Kronecker-factored precision (KFAC): for each layer A ⊗ G + δ, known by the eigenvectors of A and of G."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import Factors, FeatureMap, KroneckerFactors
from dnn2gp.features.blocks import Arrangement, Outer
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import InputError, NotPositiveDefiniteError
from dnn2gp.support.memory import require
from dnn2gp.weights.structures.base import Structure

# A factor is a product in the network's dtype: in float32 its eigenvalues are right to about this share of the largest.
_ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class KroneckerBlock:
    """A ⊗ G + δI = (Q_A ⊗ Q_G) (λ_A ⊗ λ_G + δ) (Q_A ⊗ Q_G)ᵀ for weights that lie as o × i (or as i × o).

    Q_A = None stands for the identity. The bias of a layer is the last of its i inputs.
    """

    parts: tuple[slice, ...]
    input_values: Float[Tensor, " i"]
    input_vectors: Float[Tensor, "i i"] | None
    output_values: Float[Tensor, " o"]
    output_vectors: Float[Tensor, "o o"]
    delta: Float[Tensor, ""]
    transposed: bool
    bias: bool

    @staticmethod
    def of(factors: KroneckerFactors, delta: Float[Tensor, ""]) -> KroneckerBlock:
        """From the factors, each decomposed once; rounding below zero counts as zero."""
        if factors.A.ndim == 2:
            values, vectors = _decomposed(factors.A, "inputs")
        else:
            values, vectors = factors.A.double(), None
        gradient_values, gradient_vectors = _decomposed(factors.G, "output gradients")
        return KroneckerBlock(
            factors.parts,
            values,
            vectors,
            gradient_values,
            gradient_vectors,
            delta.double(),
            factors.transposed,
            factors.bias,
        )

    @property
    def eigenvalues(self) -> Float[Tensor, "o i"]:
        """λ_G λ_Aᵀ + δ."""
        return torch.outer(self.output_values, self.input_values) + self.delta

    @property
    def arrangement(self) -> Arrangement:
        """How the matrix lies in w."""
        return Arrangement(len(self.output_values), len(self.input_values), self.bias, self.transposed)

    def matrices(self, rows: Float[Tensor, "*B p"]) -> Float[Tensor, "*B o i"]:
        """Vectors over the block's weights as matrices o × i, with the bias as the last column."""
        return self.arrangement.matrices(rows)

    def flat(self, matrices: Float[Tensor, "*B o i"]) -> Float[Tensor, "*B p"]:
        """The inverse of `matrices`."""
        return self.arrangement.vectors(matrices)

    def rotated(self, matrices: Float[Tensor, "*B o i"]) -> Float[Tensor, "*B o i"]:
        """Q_Gᵀ M Q_A."""
        turned = self.output_vectors.T @ matrices
        return turned if self.input_vectors is None else turned @ self.input_vectors

    def restored(self, matrices: Float[Tensor, "*B o i"]) -> Float[Tensor, "*B o i"]:
        """Q_G M Q_Aᵀ."""
        turned = self.output_vectors @ matrices
        return turned if self.input_vectors is None else turned @ self.input_vectors.T

    def spread(self, values: Float[Tensor, "o i"]) -> Float[Tensor, " p"]:
        """The diagonal of Q diag(values) Qᵀ."""
        mixed = self.output_vectors.square() @ values
        return self.flat(mixed if self.input_vectors is None else mixed @ self.input_vectors.square().T)


@final
class Kronecker(Structure):
    """Σ⁻¹ = ⊕ over layers of A ⊗ G + δI, decomposed once so that δ moves freely (`with_prior`).

    Small and fast, but not exact: it drops what weights of different layers have to do with each other, and the
    correlation of a layer's inputs with its output gradients. Exact cases: see `features/kronecker.py`.
    """

    name = "kronecker"
    exact = False

    def __init__(self, blocks: Sequence[KroneckerBlock]) -> None:
        """Blocks whose parts cover all weights once."""
        self.blocks = list(blocks)
        self.size = sum(part.stop - part.start for block in self.blocks for part in block.parts)

    @classmethod
    def from_ggn(
        cls, prior: Structure, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Kronecker:
        """A ⊗ G + δ of each layer."""
        largest = max(part.stop - part.start for part in features.parts)
        if features.parts == [slice(0, features.num_weights)] and len(features.layers) > 1:
            raise InputError(
                "structure=Kronecker needs the factors of each layer: use features=LayerwiseFeatures (the default)."
            )
        require(
            3 * 8 * features.kronecker_numbers(),
            features.budget(),
            f"The Kronecker factors (largest weight {largest} numbers)",
            "structure=Diagonal holds less, subset= takes fewer layers; neither is exact.",
        )
        factors = features.kronecker(inputs, root)
        covered = [part for own in factors for part in own.parts]
        factors += [_unused(part, features.anchor) for part in _gaps(covered, features.num_weights)]
        return cls([KroneckerBlock.of(own, _delta(prior, own.parts)) for own in factors])

    @classmethod
    def ggn_eigenvalues(
        cls, prior: Structure, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Float[Tensor, " P"]:
        """λ_A ⊗ λ_G / δ of each layer."""
        blocks = cls.from_ggn(prior, features, inputs, root).blocks
        return torch.cat(
            [torch.outer(block.output_values, block.input_values).flatten() / block.delta for block in blocks]
        )

    def with_prior(self, prior: Structure) -> Kronecker:
        """The same data with another δ: nothing is decomposed again."""
        return Kronecker([replace(block, delta=_delta(prior, block.parts)) for block in self.blocks])

    @property
    def dtype(self) -> torch.dtype:
        """float64."""
        return torch.float64

    def matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Q λ Qᵀ v."""
        return self._each(vectors, lambda values: values)

    def solve(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Q λ⁻¹ Qᵀ v."""
        return self._each(vectors, torch.reciprocal)

    def whiten(self, rows: Float[Tensor, "*B P"]) -> Float[Tensor, "*B P"]:
        """J Q λ^{−½}."""
        result = rows.new_empty(rows.shape, dtype=torch.float64)
        for block in self.blocks:
            turned = block.rotated(block.matrices(_gathered(rows, block))) * block.eigenvalues.rsqrt()
            _scatter(result, block, block.flat(turned))
        return result

    def unwhiten(self, noise: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Q λ^{−½} ε."""
        columns = noise.T.double()
        result = torch.empty_like(columns)
        for block in self.blocks:
            scaled = block.matrices(_gathered(columns, block)) * block.eigenvalues.rsqrt()
            _scatter(result, block, block.flat(block.restored(scaled)))
        return result.T

    def marginal(self, factors: Factors) -> Float[Tensor, "N R R"]:
        """J Σ Jᵀ of each example: A and G of each layer in the eigenvectors' axes, where Σ is diagonal."""
        known = {_key(block.parts): block for block in self.blocks}
        if any(_key(block.parts) not in known for block in factors.blocks):
            return super().marginal(factors)
        total = torch.zeros((), dtype=torch.float64, device=self.blocks[0].delta.device)
        for own in factors.to(torch.float64).blocks:
            block = known[_key(own.parts)]
            variances = block.eigenvalues.reciprocal()
            if isinstance(own, Outer):
                A = own.A if block.input_vectors is None else block.input_vectors.T @ own.A
                turned = Outer(A, block.output_vectors.T @ own.G, (slice(0, variances.numel()),))
                total = total + turned.marginal(variances.flatten())
            else:
                white = block.rotated(block.matrices(own.rows())) * variances.sqrt()
                total = total + white.flatten(-2) @ white.flatten(-2).mT
        return total

    def diagonal(self) -> Float[Tensor, " P"]:
        """diag(Σ⁻¹)."""
        return self._spread(lambda values: values)

    def inverse_diagonal(self) -> Float[Tensor, " P"]:
        """diag(Σ)."""
        return self._spread(torch.reciprocal)

    def log_det(self) -> Float[Tensor, ""]:
        """Σ log λ."""
        return torch.stack([block.eigenvalues.log().sum() for block in self.blocks]).sum()

    def dense(self) -> Float[Tensor, "P P"]:
        """Σ⁻¹ as a matrix."""
        return self.matmul(torch.eye(self.size, dtype=torch.float64, device=self.blocks[0].delta.device))

    def double(self) -> Kronecker:
        """Itself: it is in float64."""
        return self

    def state(self) -> dict[str, Tensor]:
        """The eigenvalues and eigenvectors, and the ranges of their weights."""
        tensors: dict[str, Tensor] = {}
        for number, block in enumerate(self.blocks):
            own = {
                "ranges": torch.tensor([(part.start, part.stop) for part in block.parts]),
                "form": torch.tensor([block.transposed, block.bias]),
                "input_values": block.input_values,
                "output_values": block.output_values,
                "output_vectors": block.output_vectors,
                "delta": block.delta,
            }
            if block.input_vectors is not None:
                own["input_vectors"] = block.input_vectors
            tensors |= {f"{number}.{name}": tensor.contiguous() for name, tensor in own.items()}
        return tensors

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Kronecker:
        """From the eigenvalues and eigenvectors."""
        blocks = []
        for number in range(sum(name.endswith(".ranges") for name in state)):
            transposed, bias = state[f"{number}.form"].tolist()
            blocks.append(
                KroneckerBlock(
                    tuple(slice(a, b) for a, b in state[f"{number}.ranges"].tolist()),
                    state[f"{number}.input_values"],
                    state.get(f"{number}.input_vectors"),
                    state[f"{number}.output_values"],
                    state[f"{number}.output_vectors"],
                    state[f"{number}.delta"],
                    bool(transposed),
                    bool(bias),
                )
            )
        return cls(blocks)

    def _each(self, vectors: Float[Tensor, "P S"], function: Callable[[Tensor], Tensor]) -> Float[Tensor, "P S"]:
        """Q f(λ) Qᵀ v."""
        columns = vectors.T.double()
        result = torch.empty_like(columns)
        for block in self.blocks:
            turned = block.rotated(block.matrices(_gathered(columns, block))) * function(block.eigenvalues)
            _scatter(result, block, block.flat(block.restored(turned)))
        return result.T

    def _spread(self, function: Callable[[Tensor], Tensor]) -> Float[Tensor, " P"]:
        result = torch.empty(self.size, dtype=torch.float64, device=self.blocks[0].delta.device)
        for block in self.blocks:
            _scatter(result, block, block.spread(function(block.eigenvalues)))
        return result


def _decomposed(matrix: Float[Tensor, "d d"], what: str) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    """Eigenvalues and eigenvectors of a sum of squares; rounding below zero counts as zero, more is an error."""
    values, vectors = torch.linalg.eigh(matrix.double())
    if not values.isfinite().all() or values[0] < -_ROUNDING * values[-1].abs():
        raise NotPositiveDefiniteError(
            f"The Kronecker factor of a layer's {what} has eigenvalues from {values[0].item():.3g} to "
            f"{values[-1].item():.3g}. Look for huge activations or gradients, or use float64."
        )
    return values.clamp(min=0), vectors


def _key(parts: Sequence[slice]) -> tuple[tuple[int, int], ...]:
    return tuple((part.start, part.stop) for part in parts)


def _gathered(rows: Float[Tensor, "*B P"], block: KroneckerBlock) -> Float[Tensor, "*B p"]:
    return torch.cat([rows[..., part] for part in block.parts], -1).double()


def _scatter(result: Float[Tensor, "*B P"], block: KroneckerBlock, values: Float[Tensor, "*B p"]) -> None:
    sizes = [part.stop - part.start for part in block.parts]
    for part, piece in zip(block.parts, values.split(sizes, -1), strict=True):
        result[..., part] = piece


def _delta(prior: Structure, parts: Sequence[slice]) -> Float[Tensor, ""]:
    """The one δ of a block's weights."""
    scales = [prior.scale(part) for part in parts]
    known = [scale for scale in scales if scale is not None]
    if len(known) < len(scales) or any(scale != known[0] for scale in known):
        raise InputError(
            "structure=Kronecker takes one prior precision a layer (or one for all); got several within a layer. "
            "Give prior_precision as a number or as a mapping from layer to number, or use another structure."
        )
    return known[0].double().square().reciprocal()


def _unused(part: slice, like: Tensor) -> KroneckerFactors:
    """Weights that no output depends on: their precision is that of the prior."""
    size = part.stop - part.start
    zeros = torch.zeros(size, dtype=torch.float64, device=like.device)
    return KroneckerFactors((part,), zeros, torch.zeros(1, 1, dtype=torch.float64, device=like.device))


def _gaps(covered: Sequence[slice], size: int) -> list[slice]:
    """The ranges of 0 … P−1 that no part covers."""
    gaps, place = [], 0
    for part in sorted(covered, key=lambda part: part.start):
        if part.start > place:
            gaps.append(slice(place, part.start))
        place = max(place, part.stop)
    return gaps + ([slice(place, size)] if place < size else [])
