"""ΦᵀΦ of the training data as a product with vectors, and a count of the passes over the data that were needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FactoredJacobian
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.support.randomness import normal_rows
from dnn2gp.support.resumable import remembered

_COUNTS = "passes and columns"


@final
class Curvature:
    """Φ = SᵀJ V^{½} of a linear model, in the dtype of its network."""

    def __init__(self, model: LinearModel, columns: int, reserve: int = 0) -> None:
        """`columns` vectors are multiplied at a time; `reserve` bytes of the memory budget are left to the caller."""
        expansion, precision = model.expansion, model.prior.precision
        self.dtype = expansion.anchor.dtype
        self.sites = FactoredJacobian(
            expansion.features,
            expansion.inputs,
            expansion.root,
            precision,
            self.dtype,
            reserve=reserve,
            columns=columns,
            held=reserve,
        )
        self._num_sites, self._own_examples = expansion.num_sites, expansion.own_examples
        self.passes = self.columns = 0

    @property
    def num_weights(self) -> int:
        """P."""
        return self.sites.shape[1]

    @property
    def num_sites(self) -> int:
        """M, of all processes."""
        return self._num_sites

    def matmul(self, vectors: Float[Tensor, "P s"]) -> Float[Tensor, "P s"]:
        """ΦᵀΦ v."""
        self._count(vectors)
        return self.sites.curvature(vectors.to(self.dtype))

    def shifted(self, vectors: Float[Tensor, "P s"]) -> Float[Tensor, "P s"]:
        """A v = (I + ΦᵀΦ) v."""
        return self.matmul(vectors).add_(vectors)

    def pull(self, sites: Float[Tensor, "M s"]) -> Float[Tensor, "P s"]:
        """Φᵀ u."""
        self._count(sites)
        return self.sites.pull(sites.to(self.dtype))

    def push(self, vectors: Float[Tensor, "P s"]) -> Float[Tensor, "M s"]:
        """Φ v."""
        self._count(vectors)
        return self.sites.push(vectors.to(self.dtype))

    def random_sites(self, count: int, generator: torch.Generator) -> Float[Tensor, "M s"]:
        """ε ~ N(0, I) over the sites of this process: its rows of the one matrix that all processes draw."""
        own, rank = self._own_examples, self.sites.rank
        rows = slice(own.start * rank, own.stop * rank)
        return normal_rows(self._num_sites, rows, count, generator, self.sites.features.anchor.to(self.dtype))

    def random(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """ε ~ N(0, I), in the dtype of the products."""
        like = self.sites.features.anchor
        return torch.randn(shape, generator=generator, dtype=self.dtype, device=like.device)

    def remembered(self, name: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """A step that a checkpoint keeps, with its passes and columns, which count even if it is read from there."""
        before = self.passes, self.columns

        def counted() -> dict[str, Tensor]:
            found = compute()
            return {**found, _COUNTS: torch.tensor([self.passes - before[0], self.columns - before[1]])}

        found = remembered(name, counted)
        passes, columns = found.pop(_COUNTS).tolist()
        self.passes, self.columns = before[0] + passes, before[1] + columns
        return found

    def add(self, part: Curvature) -> None:
        """Count the passes over a part of the data, as the share of the sites that it has."""
        share = part.num_sites / self.num_sites
        self.passes += round(share * part.passes)
        self.columns += round(share * part.columns)

    def _count(self, vectors: Tensor) -> None:
        self.passes += 1
        self.columns += vectors.shape[1]
