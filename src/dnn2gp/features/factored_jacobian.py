"""Φ = SᵀJ V^{½} of a data set: the factors of its layers, kept in memory, and products that need only these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.budget.plan import Work
from dnn2gp.features.factors import Factors
from dnn2gp.features.feature_map import FeatureMap
from dnn2gp.features.whitener import Unit, Whitener
from dnn2gp.network.inputs import Inputs, in_parts, num_examples
from dnn2gp.support.allocator import give_back, sparing
from dnn2gp.support.memory import chunks, room
from dnn2gp.support.progress import track

# The share of the memory budget that the factors of the training data may hold between predictions.
_SHARE = 0.25
_WIDE_ROWS = Work("Rows of the data", lambda factors: factors.to(torch.float64).rows())
# Rows of a block: large enough for a fast product, small enough that it stays in a cache.
_BLOCK_ROWS = 1024
# Examples to multiply at a time where no pairs of them are formed: with fewer, vectors are rearranged too often.
_TOGETHER = 1536
# The share of the memory budget that they may have: while they are joined, they exist twice.
_BLOCK_SHARE = 1 / 16


@final
@dataclass(frozen=True, eq=False)
class KeptFactors:
    """The factors of a data set, chunk by chunk, kept between products."""

    chunks: tuple[tuple[slice, Factors], ...]
    white: bool
    """Whether they are those of Φ = SᵀJ V^{½}, in the dtype of its products; otherwise those of SᵀJ."""

    @property
    def bytes(self) -> int:
        """The memory that they hold."""
        return sum(factors.bytes for _, factors in self.chunks)


@final
class FactoredJacobian:
    """Φ = SᵀJ V^{½} ∈ R^{M×P}, M = N·R rows ordered example by example, so that ΦΦᵀ = SᵀKS with K = J V Jᵀ.

    The factors are kept after the first use if they fit into a quarter of the memory budget (25 thousand numbers per
    image for LeNet-5, whose Jacobian has 444 thousand); otherwise they are computed again, chunk by chunk, each time.
    They are stored in the form used in products, with V^{½} and in their dtype, so that this is done once; where
    that does not fit, because V^{½} mixes weights or the dtype is wider, they are kept without it.

    If several processes share the examples (`FeatureMap.team`), Φ has only the M rows of this process, and so does Φv,
    whereas Φᵀu and ΦᵀΦv are sums over the rows of all processes.
    """

    def __init__(
        self,
        features: FeatureMap,
        inputs: Inputs,
        root: Float[Tensor, "N Q R"] | None = None,
        precision: Whitener | None = None,
        dtype: torch.dtype | None = None,
        kept: KeptFactors | None = None,
        reserve: int = 0,
        columns: int = 0,
        held: int = 0,
    ) -> None:
        """Rows of `inputs` with roots S (default: the identity) and the weight covariance V of `precision` (default:
        the identity); products are in `dtype`, by default that of the network. `kept` are the factors if they are known
        already. If they are kept, they leave `reserve` bytes of the memory budget to the caller. If no pairs of
        examples are formed, `columns` is the number of vectors that are multiplied at a time: factors of many examples
        are then used at once, which is faster, and `held` bytes are in use during a product."""
        self.features, self.inputs, self.root = features, inputs, root
        self.precision: Whitener = Unit(features.anchor.dtype) if precision is None else precision
        self.rank = features.num_outputs if root is None else root.shape[2]
        self.num_examples = num_examples(inputs)
        self._wide = features.anchor.dtype if dtype is None else dtype
        self._kept, self._reserve, self._columns, self._held = kept, reserve, columns, held

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

    def blocks(self, what: str = "factors of the data", size: int | None = None) -> Iterator[tuple[slice, Factors]]:
        """(examples, their rows of Φ by blocks of weights), chunk by chunk.

        With a `size`, factors are computed for so many examples at a time, whatever is kept and fits now.
        """
        kept = self._kept if size is None and self.kept() else None
        if kept is not None:
            for part, factors in kept.chunks:
                yield part, factors if kept.white else self._white(factors)
        else:
            for part, factors in self._made(f"{what}, computed again", size=size):
                white = self._white(factors)
                del factors
                yield part, white
                del white

    def kept(self) -> bool:
        """Whether all factors are in memory; the first call computes them, if they fit."""
        if self._kept is None:
            most = _SHARE * (self.features.budget() - self._reserve) / self.num_examples
            white = self.features.measured(self.inputs, self.rank, self._whitening()).kept
            plain = self.features.measured(self.inputs, self.rank).kept
            if min(white, plain) <= most:
                self._kept = self._keep(white if white <= most else plain, white=white <= most)
        return self._kept is not None

    def _keep(self, each: int, *, white: bool) -> KeptFactors:
        """Compute all factors, which take `each` bytes per example."""
        count = min(self._at_once(), int(_BLOCK_SHARE * self.features.budget() / max(1, each)))
        made = self._made("factors of the data", each * self.num_examples)
        own = ((part, self._white(factors) if white else factors) for part, factors in made)
        return KeptFactors(tuple(_joined(own, count)), white=white)

    @property
    def kept_bytes(self) -> int:
        """The memory of the kept factors."""
        return 0 if self._kept is None else self._kept.bytes

    def gram(self) -> Float[Tensor, "M M"]:
        """ΦΦᵀ = Sᵀ K S, one triangle of blocks and its mirror image.

        Rows and columns are divided in the same way, although the memory that is free may change in between.
        """
        size = None if self.kept() else self._size()
        result = torch.zeros(self.num_rows, self.num_rows, dtype=self.dtype, device=self.device)
        for rows, left in self.blocks("kernel of the data", size):
            for columns, right in self.blocks("kernel of the data", size):
                if columns.start > rows.start:
                    break
                place = result[self._sites(rows), self._sites(columns)]
                pairs = place.unflatten(1, (-1, self.rank)).unflatten(0, (-1, self.rank))
                left.full(left if columns == rows else right, out=pairs)
                if columns != rows:
                    result[self._sites(columns), self._sites(rows)] = place.T
            del left
        give_back(self.features.budget())  # a factorisation follows
        return result

    def cross(self, white: Factors) -> Float[Tensor, "n Q M"]:
        """J(x) V Jᵀ S for the factors J(x) V^{½} of other inputs."""
        if white.differentiable:
            return torch.cat([white.full(block).flatten(2) for _, block in self.blocks("cross kernel")], -1)
        shape = white.num_examples, white.num_rows, self.num_examples, self.rank
        result = torch.zeros(shape, dtype=white.dtype, device=white.device)
        for part, block in self.blocks("cross kernel"):
            white.full(block, out=result[:, :, part])
        return result.flatten(2)

    def diagonal_blocks(self) -> Float[Tensor, "N R R"]:
        """Sᵢᵀ K(xᵢ, xᵢ) Sᵢ of each example."""
        ones = torch.ones(self.features.num_weights, dtype=self.dtype, device=self.device)
        return torch.cat([block.marginal(ones) for _, block in self.blocks()])

    def row_blocks(self) -> Iterator[tuple[slice, Float[Tensor, "m P"]]]:
        """(rows, Φ itself), chunk by chunk."""
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
            return self.features.team.sum(total)
        mixed = shaped if self.root is None else self.root @ shaped.to(self.root.dtype)
        pulled = self.features.own_vjp(self.inputs, mixed)
        return self.features.team.sum(self.precision.whiten(pulled.T.to(self.dtype)).T)

    def curvature(
        self, vectors: Float[Tensor, "P S"], root: Float[Tensor, "N R Q"] | None = None
    ) -> Float[Tensor, "P S"]:
        """ΦᵀΦ v, or Φᵀ(S Sᵀ)Φ v with the roots S of each example.

        One chunk after the other, so that factors that are not kept are computed only once.
        """
        total = torch.zeros(vectors.shape, dtype=self.dtype, device=self.device)
        for part, block in self.blocks("curvature of the data"):
            sites = block.push(vectors)
            if root is not None:
                own = root[part].to(sites.dtype)
                sites = own @ (own.mT @ sites)
            total += block.pull(sites)
            del sites
        return self.features.team.sum(total, of=vectors)

    def joined(self, other: FactoredJacobian) -> KeptFactors | None:
        """The kept factors of both data sets with the same V, if both are kept."""
        if self._kept is None or other._kept is None:
            return None
        first, white = self.num_examples, self._kept.white and other._kept.white
        if white != self._kept.white or white != other._kept.white:
            return None
        moved = ((slice(first + part.start, first + part.stop), factors) for part, factors in other._kept.chunks)
        return KeptFactors((*self._kept.chunks, *moved), white)

    def dense(self) -> Float[Tensor, "M P"]:
        """Φ."""
        return torch.cat([rows for _, rows in self.row_blocks()])

    def _made(self, what: str, kept: int = 0, size: int | None = None) -> Iterator[tuple[slice, Factors]]:
        """(examples, their factors), chunk by chunk, if `kept` bytes of them are kept in the end."""
        size = self._size(kept) if size is None else size
        parts = list(chunks(self.num_examples, size))
        for part, some in sparing(track(in_parts(self.inputs, parts), what, len(parts)), self.features.budget()):
            own = None if self.root is None else self.root[part]
            factors = self.features.factors(some, own).compact()
            del some
            yield part, factors
            del factors

    def _size(self, kept: int = 0) -> int:
        """Examples whose factors fit at a time, beside `kept` bytes."""
        wide = max(1, self.dtype.itemsize // self.features.anchor.element_size())
        beside = 3 * wide * self.features.measured(self.inputs, self.rank).kept  # two blocks, and a copy of one
        if self._columns:
            return self.features.chunk(self.inputs, self.rank, self._product(), fixed=self._held + kept, extra=beside)
        half = (self.features.budget() - self._reserve) // 2  # of the room is for the examples they are paired with
        size = self.features.chunk(self.inputs, self.rank, fixed=self._reserve + max(0, half), extra=beside)
        return min(size, max(1, _BLOCK_ROWS // self.rank))

    def _at_once(self) -> int:
        """The examples whose kept factors are multiplied at once: their products, too, must fit into the budget."""
        if not self._columns:
            return 0
        need = self.features.need(self.inputs, self.rank, self._product())
        return min(_TOGETHER, need.most(room(self.features.budget() - self._held, self._held) // 2))

    def _product(self) -> Work:
        """ΦᵀΦ v of as many vectors as are multiplied at a time."""
        vectors = torch.zeros(self.features.num_weights, self._columns, dtype=self.dtype, device=self.device)

        def used(factors: Factors) -> Tensor:
            white = self._white(factors.compact())
            return white.pull(white.push(vectors))

        structured = self.features.structured(self.inputs, self.precision)
        return Work("ΦᵀΦ v", used, (self._columns, self.dtype, type(self.precision), structured))

    def _whitening(self) -> Work:
        structured = self.features.structured(self.inputs, self.precision)
        key = type(self.precision), structured, self.dtype
        return Work("Φ", lambda factors: self._white(factors.compact()), key)

    def _white(self, factors: Factors) -> Factors:
        return self.precision.whitened(factors.to(torch.promote_types(factors.dtype, self.dtype)))

    def _sites(self, examples: slice) -> slice:
        return slice(examples.start * self.rank, examples.stop * self.rank)


def _joined(parts: Iterable[tuple[slice, Factors]], count: int) -> Iterator[tuple[slice, Factors]]:
    """Consecutive chunks of the same form as one, up to `count` examples, and at least one chunk."""
    waiting: list[tuple[slice, Factors]] = []
    for part, factors in parts:
        if waiting and (part.stop - waiting[0][0].start > count or not factors.alike(waiting[0][1])):
            yield _one(waiting)
            waiting = []
        waiting.append((part, factors))
    if waiting:
        yield _one(waiting)


def _one(chunks: list[tuple[slice, Factors]]) -> tuple[slice, Factors]:
    (first, factors), *rest = chunks
    last = rest[-1][0] if rest else first
    return slice(first.start, last.stop), factors.joined([other for _, other in rest]) if rest else factors
