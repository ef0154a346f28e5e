"""Block-diagonal precision: the exact one within each layer, none between layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.features import Factors, FeatureMap
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.memory import require
from dnn2gp.weights.structures.base import Structure
from dnn2gp.weights.structures.dense import Dense, white_eigenvalues


@final
class BlockDiagonal(Structure):
    """Σ⁻¹ = diag(Σ₁⁻¹, …, Σ_L⁻¹), a dense block for each layer; blocks may be spread over several ranges of w.

    It drops what weights of different layers have to do with each other, so that its predictive variances are not
    those of the exact GP.
    """

    name = "block diagonal"
    exact = False

    def __init__(self, layers: Sequence[tuple[slice, ...]], blocks: Sequence[Dense]) -> None:
        """The ranges of each layer, which cover all weights once, and its precision."""
        self.layers, self.blocks = list(layers), list(blocks)
        self.size = sum(block.size for block in self.blocks)
        self._index = [torch.cat([torch.arange(part.start, part.stop) for part in parts]) for parts in self.layers]

    @classmethod
    def from_ggn(
        cls, prior: Structure, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> BlockDiagonal:
        """The diagonal blocks of V⁻¹ + JᵀΛJ; of the prior, its diagonal blocks."""
        layers = features.layers
        _require(features)
        blocks = []
        for parts, matrix in zip(layers, features.ggn_blocks(inputs, root), strict=True):
            matrix += prior.block(parts)
            blocks.append(Dense(matrix))
        return cls(layers, blocks)

    @classmethod
    def ggn_eigenvalues(
        cls, prior: Structure, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Float[Tensor, " P"]:
        """Of each block."""
        _require(features)
        precision = prior.diagonal()
        own = [torch.cat([precision[part] for part in parts]) for parts in features.layers]
        found = zip(features.ggn_blocks(inputs, root), own, strict=True)
        return torch.cat([white_eigenvalues(matrix, values) for matrix, values in found])

    @property
    def dtype(self) -> torch.dtype:
        """float64."""
        return torch.float64

    def matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ⁻¹ v, block by block."""
        return self._each(vectors, lambda block, part: block.matmul(part))

    def solve(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ v, block by block."""
        return self._each(vectors, lambda block, part: block.solve(part))

    def whiten(self, rows: Float[Tensor, "*B P"]) -> Float[Tensor, "*B P"]:
        """J L⁻ᵀ, block by block."""
        result = rows.new_empty(rows.shape, dtype=torch.float64)
        for index, block in self._pairs():
            result[..., index] = block.whiten(rows[..., index])
        return result

    def unwhiten(self, noise: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """L⁻ᵀ ε, block by block."""
        return self._each(noise, lambda block, part: block.unwhiten(part))

    def marginal(self, factors: Factors) -> Float[Tensor, "N R R"]:
        """Σ_layers J Σ Jᵀ, with the rows of one layer at a time."""
        whites = (block.whiten(factors.columns(parts)) for parts, block in zip(self.layers, self.blocks, strict=True))
        return torch.stack([white @ white.mT for white in whites]).sum(0)

    def diagonal(self) -> Float[Tensor, " P"]:
        """diag(Σ⁻¹)."""
        return self._scattered([block.diagonal() for block in self.blocks])

    def inverse_diagonal(self) -> Float[Tensor, " P"]:
        """diag(Σ)."""
        return self._scattered([block.inverse_diagonal() for block in self.blocks])

    def log_det(self) -> Float[Tensor, ""]:
        """Σ log |Σ_l⁻¹|."""
        return torch.stack([block.log_det() for block in self.blocks]).sum()

    def dense(self) -> Float[Tensor, "P P"]:
        """Σ⁻¹ as a matrix."""
        result = torch.zeros(self.size, self.size, dtype=torch.float64, device=self.blocks[0].matrix.device)
        for index, block in self._pairs():
            result[index[:, None], index] = block.matrix
        return result

    def double(self) -> BlockDiagonal:
        """Itself: it is in float64."""
        return self

    def state(self) -> dict[str, Tensor]:
        """The matrices and the ranges of their weights."""
        tensors: dict[str, Tensor] = {}
        for number, (parts, block) in enumerate(zip(self.layers, self.blocks, strict=True)):
            tensors[f"{number}.ranges"] = torch.tensor([(part.start, part.stop) for part in parts])
            tensors[f"{number}.matrix"] = block.matrix
        return tensors

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> BlockDiagonal:
        """From the matrices."""
        count = sum(name.endswith(".matrix") for name in state)
        layers = [tuple(slice(a, b) for a, b in state[f"{n}.ranges"].tolist()) for n in range(count)]
        return cls(layers, [Dense(state[f"{n}.matrix"]) for n in range(count)])

    def _pairs(self) -> list[tuple[Int[Tensor, " p"], Dense]]:
        return list(zip(self._index, self.blocks, strict=True))

    def _each(self, vectors: Float[Tensor, "P S"], function: Callable[[Dense, Tensor], Tensor]) -> Tensor:
        result = vectors.new_empty(vectors.shape, dtype=torch.float64)
        for index, block in self._pairs():
            result[index] = function(block, vectors[index])
        return result

    def _scattered(self, values: Sequence[Tensor]) -> Float[Tensor, " P"]:
        result = torch.empty(self.size, dtype=torch.float64, device=values[0].device)
        for index, value in zip(self._index, values, strict=True):
            result[index] = value
        return result


def _require(features: FeatureMap) -> None:
    """Raise unless the blocks, their factors and a copy fit into the budget."""
    sizes = [sum(part.stop - part.start for part in parts) for parts in features.layers]
    require(
        3 * 8 * sum(size**2 for size in sizes),
        features.budget(),
        f"A block-diagonal precision (largest layer {max(sizes)} weights)",
        "structure=Kronecker or Diagonal holds less, subset= takes fewer layers; neither is exact.",
    )
