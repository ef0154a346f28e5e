"""Kronecker-factored precision (KFAC): A ⊗ G + δI for each layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import Factors, FeatureMap, KroneckerFactors
from dnn2gp.features.blocks import Arrangement, Block, Outer
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import InputError, NotFiniteError, NotPositiveDefiniteError
from dnn2gp.support.memory import require
from dnn2gp.weights.structures.base import Precision, Structure

# A factor is a product in the network's dtype: in float32 its eigenvalues are accurate to about this share of the
# largest one.
_ROUNDING = 1e-5


@final
@dataclass(frozen=True, eq=False)
class KroneckerBlock:
    """A ⊗ G + δI = (Q_A ⊗ Q_G) (λ_A ⊗ λ_G + δ) (Q_A ⊗ Q_G)ᵀ for weights that form an o × i matrix (or i × o).

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
        """Decompose each factor once; eigenvalues that rounding made negative count as zero."""
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
    def key(self) -> tuple[tuple[int, int], ...]:
        """The ranges of the block's weights, as a key."""
        return key(self.parts)

    @property
    def ggn_eigenvalues(self) -> Float[Tensor, "o i"]:
        """λ_G λ_Aᵀ."""
        return torch.outer(self.output_values, self.input_values)

    @property
    def eigenvalues(self) -> Float[Tensor, "o i"]:
        """λ_G λ_Aᵀ + δ."""
        return self.ggn_eigenvalues + self.delta

    def rotated(self, vectors: Float[Tensor, "*B p"]) -> Float[Tensor, "*B o i"]:
        """Q_Gᵀ M Q_A for vectors over the block's weights as matrices M, the bias as the last column."""
        turned = self.output_vectors.T @ self.matrices(vectors)
        return turned if self.input_vectors is None else turned @ self.input_vectors

    def restored(self, matrices: Float[Tensor, "*B o i"]) -> Float[Tensor, "*B p"]:
        """Q_G M Q_Aᵀ as vectors: the inverse of `rotated`."""
        turned = self.output_vectors @ matrices
        return self.vectors(turned if self.input_vectors is None else turned @ self.input_vectors.T)

    def matrices(self, vectors: Float[Tensor, "*B p"]) -> Float[Tensor, "*B o i"]:
        """Vectors over the block's weights as matrices."""
        return self._arrangement.matrices(vectors)

    def vectors(self, matrices: Float[Tensor, "*B o i"]) -> Float[Tensor, "*B p"]:
        """The inverse of `matrices`."""
        return self._arrangement.vectors(matrices)

    def spread(self, values: Float[Tensor, "o i"]) -> Float[Tensor, " p"]:
        """The diagonal of Q diag(values) Qᵀ."""
        mixed = self.output_vectors.square() @ values
        return self.vectors(mixed if self.input_vectors is None else mixed @ self.input_vectors.square().T)

    def marginal(self, block: Block) -> Float[Tensor, "N R R"]:
        """J Σ Jᵀ of each example over these weights, in the eigenbasis, where Σ is diagonal."""
        variances = self.eigenvalues.reciprocal()
        if isinstance(block, Outer):
            A = block.A if self.input_vectors is None else self.input_vectors.T @ block.A
            turned = Outer(A, self.output_vectors.T @ block.G, (slice(0, variances.numel()),))
            return turned.marginal(variances.flatten())
        white = (self.rotated(block.rows()) * variances.sqrt()).flatten(-2)
        return white @ white.mT

    def gathered(self, rows: Float[Tensor, "*B P"]) -> Float[Tensor, "*B p"]:
        """The entries of this block's weights, in float64."""
        return torch.cat([rows[..., part] for part in self.parts], -1).double()

    def scatter(self, result: Float[Tensor, "*B P"], values: Float[Tensor, "*B p"]) -> None:
        """The inverse of `gathered`: write the entries of this block's weights into `result`."""
        sizes = [part.stop - part.start for part in self.parts]
        for part, piece in zip(self.parts, values.split(sizes, -1), strict=True):
            result[..., part] = piece

    def product(self, rows: Float[Tensor, "*B P"], function: Callable[[Tensor], Tensor]) -> Float[Tensor, "*B p"]:
        """Q f(λ) Qᵀ v over these weights."""
        return self.restored(self.rotated(self.gathered(rows)) * function(self.eigenvalues))

    @property
    def _arrangement(self) -> Arrangement:
        return Arrangement(len(self.output_values), len(self.input_values), self.bias, self.transposed)


def key(parts: tuple[slice, ...]) -> tuple[tuple[int, int], ...]:
    """Ranges of weights as a key."""
    return tuple((part.start, part.stop) for part in parts)


def _decomposed(matrix: Float[Tensor, "d d"], what: str) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    """Eigenvalues and eigenvectors of a sum of squares; a negative eigenvalue beyond rounding is an error."""
    if not matrix.isfinite().all():
        raise NotFiniteError(
            f"The Kronecker factor of a layer's {what} overflows in {matrix.dtype}. Look for huge activations or "
            "gradients, or use float64."
        )
    values, vectors = torch.linalg.eigh(matrix.double())
    if values[0] < -_ROUNDING * values[-1].abs():
        raise NotPositiveDefiniteError(
            f"The Kronecker factor of a layer's {what} has eigenvalues from {values[0].item():.3g} to "
            f"{values[-1].item():.3g}. Look for huge activations or gradients, or use float64."
        )
    return values.clamp(min=0), vectors


@final
@dataclass(frozen=True)
class Kronecker(Structure):
    """For each layer A ⊗ G + δI, where A sums the outer products of its inputs and G those of its output gradients.

    Small and fast, but not exact: it drops the correlations between weights of different layers, and those of a layer's
    inputs with its output gradients. `features/kronecker_factors.py` states when the factors are exact. It takes one
    prior precision δ per layer.
    """

    name = "kronecker"
    exact = False

    def posterior_precision(
        self, prior: Precision, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> KroneckerPrecision:
        parts = features.parts(inputs)
        largest = max(part.stop - part.start for part in parts)
        if parts == [slice(0, features.num_weights)] and len(features.layers) > 1:
            raise InputError(
                "features: structure=Kronecker() needs the factors of each layer. Use features=LayerwiseFeatures, "
                "the default."
            )
        require(
            3 * 8 * features.kronecker_numbers(inputs),
            features.budget(),
            f"The Kronecker factors (the largest weight has {largest} entries)",
            "structure=Diagonal() needs less memory, and subset= selects fewer layers; neither is exact.",
        )
        factors = features.kronecker(inputs, root)
        covered = [part for own in factors for part in own.parts]
        layers = [part for own in features.layers for part in own]
        factors += [_unused(part, features.anchor) for part in _gaps(covered, layers)]
        return KroneckerPrecision([KroneckerBlock.of(own, _delta(prior, own.parts)) for own in factors])

    def ggn_eigenvalues(
        self, prior: Precision, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Float[Tensor, " P"]:
        """λ_A ⊗ λ_G / δ of each layer."""
        blocks = self.posterior_precision(prior, features, inputs, root).blocks
        return torch.cat([block.ggn_eigenvalues.flatten() / block.delta for block in blocks])

    def restored(self, state: dict[str, Tensor]) -> KroneckerPrecision:
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
        return KroneckerPrecision(blocks)


@final
class KroneckerPrecision(Precision):
    """Σ⁻¹ = ⊕ over layers of A ⊗ G + δI, each decomposed once so that δ can change (`with_prior`)."""

    structure = Kronecker()

    def __init__(self, blocks: Sequence[KroneckerBlock]) -> None:
        """Blocks whose ranges together cover every weight once."""
        self.blocks = list(blocks)
        self.size = sum(part.stop - part.start for block in self.blocks for part in block.parts)

    def with_prior(self, prior: Precision) -> KroneckerPrecision:
        """The precision for the same data with another prior, without a new decomposition."""
        return KroneckerPrecision([replace(block, delta=_delta(prior, block.parts)) for block in self.blocks])

    @property
    def dtype(self) -> torch.dtype:
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
            turned = block.rotated(block.gathered(rows)) * block.eigenvalues.rsqrt()
            block.scatter(result, block.vectors(turned))
        return result

    def unwhiten(self, noise: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Q λ^{−½} ε."""
        columns = noise.T.double()
        result = torch.empty_like(columns)
        for block in self.blocks:
            scaled = block.matrices(block.gathered(columns)) * block.eigenvalues.rsqrt()
            block.scatter(result, block.restored(scaled))
        return result.T

    def marginal(self, factors: Factors) -> Float[Tensor, "N R R"]:
        known = {block.key: block for block in self.blocks}
        if any(key(own.parts) not in known for own in factors.blocks):
            return super().marginal(factors)
        total = torch.zeros((), dtype=torch.float64, device=self.blocks[0].delta.device)
        for own in factors.to(torch.float64).blocks:
            total = total + known[key(own.parts)].marginal(own)
        return total

    def diagonal(self) -> Float[Tensor, " P"]:
        return self._spread(lambda values: values)

    def inverse_diagonal(self) -> Float[Tensor, " P"]:
        return self._spread(torch.reciprocal)

    def log_det(self) -> Float[Tensor, ""]:
        """Σ log λ."""
        return torch.stack([block.eigenvalues.log().sum() for block in self.blocks]).sum()

    def dense(self) -> Float[Tensor, "P P"]:
        return self.matmul(torch.eye(self.size, dtype=torch.float64, device=self.blocks[0].delta.device))

    def double(self) -> KroneckerPrecision:
        return self

    def state(self) -> dict[str, Tensor]:
        """The eigenvalues and eigenvectors of each layer and the ranges of its weights."""
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

    def _each(self, vectors: Float[Tensor, "P S"], function: Callable[[Tensor], Tensor]) -> Float[Tensor, "P S"]:
        """Q f(λ) Qᵀ v."""
        columns = vectors.T.double()
        result = torch.empty_like(columns)
        for block in self.blocks:
            block.scatter(result, block.product(columns, function))
        return result.T

    def _spread(self, function: Callable[[Tensor], Tensor]) -> Float[Tensor, " P"]:
        """diag(Q f(λ) Qᵀ)."""
        result = torch.empty(self.size, dtype=torch.float64, device=self.blocks[0].delta.device)
        for block in self.blocks:
            block.scatter(result, block.spread(function(block.eigenvalues)))
        return result


def _delta(prior: Precision, parts: Sequence[slice]) -> Float[Tensor, ""]:
    """The single δ of a block's weights."""
    scales = [prior.scale(part) for part in parts]
    known = [scale for scale in scales if scale is not None]
    if len(known) < len(scales) or any(scale != known[0] for scale in known):
        raise InputError(
            "prior_precision: expected one number per layer, or one for all layers, for structure=Kronecker(); got "
            "several within a layer. Give prior_precision as a number or as a mapping from layer to number, or use "
            "another structure."
        )
    return known[0].double().square().reciprocal()


def _unused(part: slice, like: Tensor) -> KroneckerFactors:
    """Factors for weights that no output depends on: their posterior precision is that of the prior."""
    size = part.stop - part.start
    zeros = torch.zeros(size, dtype=torch.float64, device=like.device)
    return KroneckerFactors((part,), zeros, torch.zeros(1, 1, dtype=torch.float64, device=like.device))


def _gaps(covered: Sequence[slice], weights: Sequence[slice]) -> list[slice]:
    """The ranges of each weight tensor that no part covers."""
    gaps = []
    for weight in weights:
        own = [part for part in covered if part.start < weight.stop and weight.start < part.stop]
        place = weight.start
        for part in sorted(own, key=lambda part: part.start):
            if place < part.start:
                gaps.append(slice(place, part.start))
            place = max(place, part.stop)
        if place < weight.stop:
            gaps.append(slice(place, weight.stop))
    return gaps
