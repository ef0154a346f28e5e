"""The interface of a covariance Σ of the weights that products of features use."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks import Block
from dnn2gp.features.factors import Factors


class Whitener(ABC):
    """A covariance Σ of the weights, given by a square root: rows J become J Σ^{½}."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of Σ; products have the wider of this dtype and that of the rows."""

    @abstractmethod
    def whiten(self, rows: Float[Tensor, "*B P"]) -> Float[Tensor, "*B P"]:
        """J Σ^{½}, so that whiten(J) whiten(J')ᵀ = J Σ J'ᵀ."""

    @abstractmethod
    def unwhiten(self, noise: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ^{½} ε: columns of covariance Σ from columns of covariance I; whiten(J) ε = J unwhiten(ε)."""

    def scale(self, part: slice) -> Float[Tensor, ""] | None:
        """s if Σ is s² I on this range of weights and does not couple it with others, otherwise None.

        Where every range has such a number, kernels come from the factors of each layer and rows are never formed.
        """
        return None

    def whitened(self, factors: Factors) -> Factors:
        """J Σ^{½}: block by block if Σ is one number on each, otherwise one block of rows."""
        wide = factors.to(torch.promote_types(factors.dtype, self.dtype))
        scaled: list[Block] = []
        for block in wide.blocks:
            scales = [self.scale(part) for part in block.parts]
            known = [scale.item() for scale in scales if scale is not None]
            if len(known) < len(scales):
                return Factors.of_rows(self.whiten(wide.rows()))
            scaled.append(block.scaled(known))
        return wide.with_blocks(scaled)

    def marginal(self, factors: Factors) -> Float[Tensor, "N R R"]:
        """J Σ Jᵀ of each example, from the rows of all weights; structures may use the blocks of each layer."""
        white = self.whiten(factors.rows())
        return white @ white.mT


class Unit(Whitener):
    """Σ = I."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def whiten(self, rows: Float[Tensor, "*B P"]) -> Float[Tensor, "*B P"]:
        """J."""
        return rows.to(self._dtype)

    def unwhiten(self, noise: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """ε."""
        return noise

    def marginal(self, factors: Factors) -> Float[Tensor, "N R R"]:
        """J Jᵀ, layer by layer."""
        wide = factors.to(torch.promote_types(factors.dtype, self._dtype))
        return wide.marginal(torch.ones(wide.num_weights, dtype=wide.dtype, device=wide.device))

    def scale(self, part: slice) -> Float[Tensor, ""]:
        """1 everywhere."""
        return torch.ones((), dtype=self._dtype)
