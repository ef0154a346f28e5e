"""Block-diagonal precision: exact within each layer, with no correlation between layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.features import Factors, FeatureMap
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.memory import require
from dnn2gp.weights.structures.base import Precision, Structure
from dnn2gp.weights.structures.dense import DensePrecision, white_eigenvalues


@final
@dataclass(frozen=True)
class BlockDiagonal(Structure):
    """The diagonal blocks of V⁻¹ + JᵀΛJ, one dense block per layer.

    It drops the correlations between weights of different layers, so its predictive variances differ from those of the
    exact GP.
    """

    name = "block diagonal"
    exact = False

    def posterior_precision(
        self, prior: Precision, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> BlockDiagonalPrecision:
        """The blocks of V⁻¹ + JᵀΛJ; only the diagonal blocks of the prior are used, too."""
        layers = features.layers
        _require(features)
        blocks = []
        for parts, matrix in zip(layers, features.ggn_blocks(inputs, root), strict=True):
            matrix += prior.block(parts)
            blocks.append(DensePrecision(matrix))
        return BlockDiagonalPrecision(layers, blocks)

    def ggn_eigenvalues(
        self, prior: Precision, features: FeatureMap, inputs: Inputs, root: Float[Tensor, "N Q R"]
    ) -> Float[Tensor, " P"]:
        """The eigenvalues of all blocks."""
        _require(features)
        precision = prior.diagonal()
        own = [torch.cat([precision[part] for part in parts]) for parts in features.layers]
        found = zip(features.ggn_blocks(inputs, root), own, strict=True)
        return torch.cat([white_eigenvalues(matrix, values) for matrix, values in found])

    def restored(self, state: dict[str, Tensor]) -> BlockDiagonalPrecision:
        count = sum(name.endswith(".matrix") for name in state)
        layers = [tuple(slice(a, b) for a, b in state[f"{n}.ranges"].tolist()) for n in range(count)]
        return BlockDiagonalPrecision(layers, [DensePrecision(state[f"{n}.matrix"]) for n in range(count)])


@final
class BlockDiagonalPrecision(Precision):
    """Σ⁻¹ = diag(Σ₁⁻¹, …, Σ_L⁻¹), one dense block per layer; a block may be spread over several ranges of w."""

    structure = BlockDiagonal()

    def __init__(self, layers: Sequence[tuple[slice, ...]], blocks: Sequence[DensePrecision]) -> None:
        """The ranges of weights of each layer, which together cover every weight once, and each layer's precision."""
        self.layers, self.blocks = list(layers), list(blocks)
        self.size = sum(block.size for block in self.blocks)
        self._index = [torch.cat([torch.arange(part.start, part.stop) for part in parts]) for parts in self.layers]

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64

    def matmul(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        return self._each(vectors, lambda block, part: block.matmul(part))

    def solve(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        return self._each(vectors, lambda block, part: block.solve(part))

    def whiten(self, rows: Float[Tensor, "*B P"]) -> Float[Tensor, "*B P"]:
        result = rows.new_empty(rows.shape, dtype=torch.float64)
        for index, block in self._pairs():
            result[..., index] = block.whiten(rows[..., index])
        return result

    def unwhiten(self, noise: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        return self._each(noise, lambda block, part: block.unwhiten(part))

    def marginal(self, factors: Factors) -> Float[Tensor, "N R R"]:
        """Σ_l J_l Σ_l J_lᵀ, forming the rows of one layer at a time."""
        whites = (block.whiten(factors.columns(parts)) for parts, block in zip(self.layers, self.blocks, strict=True))
        return torch.stack([white @ white.mT for white in whites]).sum(0)

    def diagonal(self) -> Float[Tensor, " P"]:
        return self._scattered([block.diagonal() for block in self.blocks])

    def inverse_diagonal(self) -> Float[Tensor, " P"]:
        return self._scattered([block.inverse_diagonal() for block in self.blocks])

    def log_det(self) -> Float[Tensor, ""]:
        """Σ_l log |Σ_l⁻¹|."""
        return torch.stack([block.log_det() for block in self.blocks]).sum()

    def dense(self) -> Float[Tensor, "P P"]:
        result = torch.zeros(self.size, self.size, dtype=torch.float64, device=self.blocks[0].matrix.device)
        for index, block in self._pairs():
            result[index[:, None], index] = block.matrix
        return result

    def double(self) -> BlockDiagonalPrecision:
        return self

    def state(self) -> dict[str, Tensor]:
        """The matrix of each block and the ranges of its weights."""
        tensors: dict[str, Tensor] = {}
        for number, (parts, block) in enumerate(zip(self.layers, self.blocks, strict=True)):
            tensors[f"{number}.ranges"] = torch.tensor([(part.start, part.stop) for part in parts])
            tensors[f"{number}.matrix"] = block.matrix
        return tensors

    def _pairs(self) -> list[tuple[Int[Tensor, " p"], DensePrecision]]:
        return list(zip(self._index, self.blocks, strict=True))

    def _each(self, vectors: Float[Tensor, "P S"], function: Callable[[DensePrecision, Tensor], Tensor]) -> Tensor:
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
    """Raise unless the blocks, their factors and a copy fit into the memory budget."""
    sizes = [sum(part.stop - part.start for part in parts) for parts in features.layers]
    require(
        3 * 8 * sum(size**2 for size in sizes),
        features.budget(),
        f"A block-diagonal precision (the largest layer has {max(sizes)} weights)",
        "structure=Kronecker() or Diagonal() needs less memory, and subset= selects fewer layers; neither is exact.",
    )
