"""Φ = SᵀJ V^{½} of a data set: its layers' factors, kept, and the products that need no more than these."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.budget.work import Work
from dnn2gp.features.factors import Factors
from dnn2gp.features.feature_map import FeatureMap
from dnn2gp.features.whitener import Unit, Whitener
from dnn2gp.network.inputs import Inputs, num_examples, take
from dnn2gp.support.memory import chunks
from dnn2gp.support.progress import track

# The share of the memory budget that the factors of the training data may hold between predictions.
_SHARE = 0.25
_WIDE_ROWS = Work("Rows of the data", lambda factors: factors.to(torch.float64).rows())
# Rows of a block: large enough for a fast product, small enough that it stays in a cache.
_BLOCK_ROWS = 1024


class FactoredJacobian:
    """Φ = SᵀJ V^{½} ∈ R^{M×P}, M = N·R rows ordered example by example, so that ΦΦᵀ = SᵀKS with K = J V Jᵀ.

    The factors are kept after the first use if they fit into a quarter of the memory budget (25 thousand numbers an
    image for LeNet-5, whose Jacobian has 444 thousand); otherwise they are made anew, chunk by chunk, each time.
    """

    def __init__(
        self,
        features: FeatureMap,
        inputs: Inputs,
        root: Float[Tensor, "N Q R"] | None = None,
        precision: Whitener | None = None,
        dtype: torch.dtype | None = None,
        kept: list[tuple[slice, Factors]] | None = None,
        reserve: int = 0,
    ) -> None:
        """Rows of `inputs` with roots S (default: the identity) and the weight covariance V of `precision` (default:
        the identity); products are in `dtype`, by default that of the network. `reserve` bytes of the memory budget are
        the caller's."""
        self.features, self.inputs, self.root = features, inputs, root
        self.precision: Whitener = Unit(features.anchor.dtype) if precision is None else precision
        self.rank = features.num_outputs if root is None else root.shape[2]
        self.num_examples = num_examples(inputs)
        self._wide = features.anchor.dtype if dtype is None else dtype
        self._kept, self._reserve = kept, reserve

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the products."""
        return self._wide

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.features.anchor.device

    @property
    def shape(self) -> torch.Size:
        """(M, P)."""
        return torch.Size([self.num_rows, self.features.num_weights])

    @property
    def num_rows(self) -> int:
        """M = N·R."""
        return self.num_examples * self.rank

    def blocks(self, what: str = "factors of the data") -> Iterator[tuple[slice, Factors]]:
        """(examples, their rows of Φ by blocks of weights), chunk by chunk."""
        if self.kept() and self._kept is not None:
            for part, factors in self._kept:
                yield part, self._white(factors)
        else:
            for part, factors in self._made(f"{what}, made anew"):
                white = self._white(factors)
                del factors
                yield part, white
                del white

    def kept(self) -> bool:
        """Whether all factors are in memory; they are made here the first time, if they fit."""
        if self._kept is None:
            each = self.features.measured(self.inputs, self.rank).kept
            fits = self.num_examples * each <= _SHARE * (self.features.budget() - self._reserve)
            self._kept = list(self._made("factors of the data")) if fits else None
        return self._kept is not None

    @property
    def kept_bytes(self) -> int:
        """The memory of the kept factors."""
        return sum(factors.bytes for _, factors in self._kept or ())

    def gram(self) -> Float[Tensor, "M M"]:
        """ΦΦᵀ = Sᵀ K S, one triangle of blocks and its mirror image."""
        result = torch.empty(self.num_rows, self.num_rows, dtype=self.dtype, device=self.device)
        for rows, left in self.blocks("kernel of the data"):
            for columns, right in self.blocks("kernel of the data"):
                if columns.start > rows.start:
                    break
                product = left.full(left if columns == rows else right).flatten(2).flatten(0, 1)
                result[self._sites(rows), self._sites(columns)] = product
                if columns != rows:
                    result[self._sites(columns), self._sites(rows)] = product.T
        return result

    def cross(self, white: Factors) -> Float[Tensor, "n Q M"]:
        """J(x) V Jᵀ S for the factors J(x) V^{½} of other inputs."""
        return torch.cat([white.full(block).flatten(2) for _, block in self.blocks("cross kernel")], -1)

    def diagonal_blocks(self) -> Float[Tensor, "N R R"]:
        """Sᵢᵀ K(xᵢ, xᵢ) Sᵢ of each example."""
        ones = torch.ones(self.features.num_weights, dtype=self.dtype, device=self.device)
        return torch.cat([block.marginal(ones) for _, block in self.blocks()])

    def row_blocks(self) -> Iterator[tuple[slice, Float[Tensor, "m P"]]]:
        """(rows, Φ itself), chunk by chunk: for what needs every entry."""
        beside = 4 * 8 * self.rank * self.features.num_weights  # two blocks of rows, and products with them
        size = self.features.chunk(self.inputs, self.rank, _WIDE_ROWS, fixed=self._reserve, extra=beside)
        for part, block in self.blocks():
            for own in chunks(block.num_examples, size):
                start = part.start + own.start
                rows = block.take(own).rows().flatten(0, 1)
                yield self._sites(slice(start, start + own.stop - own.start)), rows

    def push(self, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "M S"]:
        """Φ v; without kept factors, as SᵀJ (V^{½} v) by passes through the network."""
        if self.kept():
            return torch.cat([block.push(vectors).flatten(0, 1) for _, block in self.blocks()])
        pushed = self.features.jvp(self.inputs, self.precision.unwhiten(vectors))
        sites = pushed if self.root is None else self.root.mT.to(pushed.dtype) @ pushed
        return sites.flatten(0, 1).to(self.dtype)

    def pull(self, sites: Float[Tensor, "M S"]) -> Float[Tensor, "P S"]:
        """Φᵀ u; without kept factors, as (V^{½})ᵀ JᵀS u by passes through the network."""
        shaped = sites.unflatten(0, (self.num_examples, self.rank))
        if self.kept():
            total = torch.zeros(self.shape[1], sites.shape[1], dtype=self.dtype, device=self.device)
            for part, block in self.blocks():
                total += block.pull(shaped[part])
            return total
        mixed = shaped if self.root is None else self.root @ shaped.to(self.root.dtype)
        pulled = self.features.vjp(self.inputs, mixed)
        return self.precision.whiten(pulled.T.to(self.dtype)).T

    def joined(self, other: FactoredJacobian) -> list[tuple[slice, Factors]] | None:
        """The kept factors of both, if both are kept."""
        if self._kept is None or other._kept is None:
            return None
        first = self.num_examples
        return self._kept + [(slice(first + part.start, first + part.stop), factors) for part, factors in other._kept]

    def dense(self) -> Float[Tensor, "M P"]:
        """Φ."""
        return torch.cat([rows for _, rows in self.row_blocks()])

    def _made(self, what: str) -> Iterator[tuple[slice, Factors]]:
        wide = self.dtype.itemsize // self.features.anchor.element_size()
        beside = 3 * wide * self.features.measured(self.inputs, self.rank).kept  # two blocks, and a copy of one
        half = (self.features.budget() - self._reserve) // 2  # the other half is for the examples they are used with
        size = self.features.chunk(self.inputs, self.rank, fixed=self._reserve + max(0, half), extra=beside)
        size = min(size, max(1, _BLOCK_ROWS // self.rank))
        for part in track(list(chunks(self.num_examples, size)), what):
            own = None if self.root is None else self.root[part]
            yield part, self.features.factors(take(self.inputs, part), own).compact()

    def _white(self, factors: Factors) -> Factors:
        return self.precision.whitened(factors.to(torch.promote_types(factors.dtype, self.dtype)))

    def _sites(self, examples: slice) -> slice:
        return slice(examples.start * self.rank, examples.stop * self.rank)
