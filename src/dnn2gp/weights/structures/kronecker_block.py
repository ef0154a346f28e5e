"""One layer of a Kronecker-factored precision, A ⊗ G + δI, known by the eigenvectors of A and of G."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import KroneckerFactors
from dnn2gp.features.blocks import Arrangement, Block, Outer
from dnn2gp.support.errors import NotPositiveDefiniteError

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
        """J Σ Jᵀ of each example over these weights, in the axes of the eigenvectors, where Σ is diagonal."""
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
    values, vectors = torch.linalg.eigh(matrix.double())
    if not values.isfinite().all() or values[0] < -_ROUNDING * values[-1].abs():
        raise NotPositiveDefiniteError(
            f"The Kronecker factor of a layer's {what} has eigenvalues from {values[0].item():.3g} to "
            f"{values[-1].item():.3g}. Look for huge activations or gradients, or use float64."
        )
    return values.clamp(min=0), vectors
