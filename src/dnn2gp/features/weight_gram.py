"""JᵀJ of many examples, chunk by chunk: the P × P matrix of weight space.

A layer that is used at one position has J = g ⊗ a. For two such layers and R rows per example,

    Σ_n Σ_r (g_nr ⊗ a_n) (g'_nr ⊗ a'_n)ᵀ = Σ_n H_n ⊗ a_n a'_nᵀ ,      H_n = Σ_r g_nr g'_nrᵀ ,

which costs R times fewer operations than the product of the rows. For the last layer of a classifier, H_n is Λ_n.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks import Outer
from dnn2gp.features.blocks.base import Arrangement
from dnn2gp.features.factors import Factors
from dnn2gp.support.memory import chunks

# The largest number of entries in a temporary of the structured product.
_BUFFER = 1 << 21
# The ranges of a layer's weights, and their order within it.
_Layer = tuple[tuple[tuple[int, int], ...], Arrangement]


@final
class WeightGram:
    """Σ JᵀJ over the chunks that were added, in float64.

    Products of single-position layers are collected as o × i × o' × i' tensors and only put in the order of the
    weights at the end: doing that for every chunk would cost more than the products.
    """

    def __init__(self, num_weights: int, device: torch.device) -> None:
        """Zero, for P weights."""
        self._total = torch.zeros(num_weights, num_weights, dtype=torch.float64, device=device)
        self._products: dict[tuple[_Layer, _Layer], Tensor] = {}

    @property
    def bytes(self) -> int:
        """Its peak memory, in addition to the factors of a chunk."""
        return 3 * self._total.nbytes

    def add(self, factors: Factors) -> None:
        """Add the examples of a chunk."""
        layers = [
            block.to(torch.float64) for block in factors.blocks if isinstance(block, Outer) and _is_cheaper(block)
        ]
        if len(layers) < len(factors.blocks):
            rows = factors.rows().flatten(0, 1).double()
            self._total.addmm_(rows.T, rows)
            return
        for position, left in enumerate(layers):
            for right in layers[position:]:
                self._add_product(left, right)

    def result(self) -> Float[Tensor, "P P"]:
        """Σ JᵀJ; nothing can be added afterwards."""
        while self._products:
            (left, right), product = self._products.popitem()
            if left == right:
                _mirror(product)
            columns = right[1].vectors(product)  # o i q
            del product
            self._place(left, right, left[1].vectors(columns.permute(2, 0, 1)).T)
            del columns
        return self._total

    def _add_product(self, left: Outer, right: Outer) -> None:
        """Σ_n H_n ⊗ a_n a'_nᵀ, one output o of the left layer at a time; one triangle if both are the same layer."""
        A, B = left.A.squeeze(2), right.A.squeeze(2) * (left.scale * right.scale)
        H = left.G.squeeze(3).mT @ right.G.squeeze(3)
        (_, o_left, o_right), i_left, i_right = H.shape, A.shape[1], B.shape[1]
        key = _layer(left), _layer(right)
        if key not in self._products:
            self._products[key] = A.new_zeros(o_left, i_left, o_right, i_right)
        product = self._products[key].flatten(2)
        for o in range(o_left):
            first = o if right is left else 0
            for part in chunks(o_right - first, max(1, _BUFFER // B.numel())):
                own = slice(first + part.start, first + part.stop)
                weighted = H[:, o, own, None] * B[:, None]
                product[o, :, own.start * i_right : own.stop * i_right].addmm_(A.T, weighted.flatten(1))

    def _place(self, left: _Layer, right: _Layer, product: Float[Tensor, "p q"]) -> None:
        """Add a product to the rows and columns of its weights."""
        for rows, own in zip(_parts(left), product.split(_sizes(left)), strict=True):
            for columns, piece in zip(_parts(right), own.split(_sizes(right), 1), strict=True):
                self._total[rows, columns] += piece
                if right != left:
                    self._total[columns, rows] += piece.T


def _is_cheaper(block: Outer) -> bool:
    """Whether the structured product costs less than that of the rows."""
    return block.num_positions == 1 and block.num_rows > 1


def _mirror(product: Float[Tensor, "o i o i"]) -> None:
    """Fill the lower triangle of outputs with the upper one."""
    for o in range(len(product)):
        product[o + 1 :, :, o] = product[o, :, o + 1 :].permute(1, 2, 0)


def _layer(block: Outer) -> _Layer:
    return tuple((part.start, part.stop) for part in block.parts), block.arrangement


def _parts(layer: _Layer) -> list[slice]:
    return [slice(*part) for part in layer[0]]


def _sizes(layer: _Layer) -> list[int]:
    return [stop - start for start, stop in layer[0]]
