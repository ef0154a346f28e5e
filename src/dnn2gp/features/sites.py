"""The rows of all sites, Φ = SᵀJ V^{½} (M × P), kept in memory where the budget allows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.base import FeatureMap, Whitener
from dnn2gp.inputs import Inputs, num_examples, take
from dnn2gp.memory import chunks
from dnn2gp.progress import track

# The share of the memory budget that the rows of the training data may hold between predictions.
_SHARE = 0.25
# Rows of a block: large enough for a fast matrix product, small enough that ΦΦᵀ costs little more than one triangle.
_BLOCK = 1024


class SiteFeatures:
    """Φ = SᵀJ V^{½} of a data set, so that ΦΦᵀ = SᵀKS; rows ordered example by example.

    Kept after the first use if it fits into a quarter of the memory budget, so that predictions do not differentiate
    the training data again; otherwise made anew, chunk by chunk, each time.
    """

    def __init__(
        self,
        features: FeatureMap,
        inputs: Inputs,
        root: Float[Tensor, "N Q R"],
        precision: Whitener,
        rows: Float[Tensor, "M P"] | None = None,
    ) -> None:
        """Sites of `inputs` with roots S, under the weight covariance V of `precision`."""
        self.features, self.inputs, self.root, self.precision = features, inputs, root, precision
        self.size = root.shape[0] * root.shape[2]
        self._rows = rows

    def gram(self) -> Float[Tensor, "M M"]:
        """ΦΦᵀ = Sᵀ K S, in float64."""
        result = torch.empty(self.size, self.size, dtype=torch.float64, device=self.root.device)
        for rows, block in self.blocks():
            for columns, other in self.blocks():
                if columns.start > rows.start:
                    break
                product = block @ (block if columns == rows else other).T
                result[rows, columns] = product
                result[columns, rows] = product.T
        return result

    def cross(self, white: Float[Tensor, "n Q P"]) -> Float[Tensor, "n Q M"]:
        """J(x) V Jᵀ S for whitened rows J(x) V^{½} of other inputs."""
        white = white.double()
        return torch.cat([white @ block.T for _, block in self.blocks()], -1)

    def matmul(self, white: Float[Tensor, "P S"]) -> Float[Tensor, "M S"]:
        """Φ z = SᵀJ (V^{½} z), in float64; without the rows, one forward-mode pass a column."""
        if self.kept():
            return torch.cat([block @ white for _, block in self.blocks()])
        pushed = self.features.jvp(self.inputs, self.precision.unwhiten(white).to(self.root.dtype))
        return (self.root.mT @ pushed).flatten(0, 1).double()

    def rmatmul(self, sites: Float[Tensor, "M S"]) -> Float[Tensor, "P S"]:
        """Φᵀ a = (V^{½})ᵀ JᵀS a, in float64; without the rows, one backward pass a column."""
        if self.kept():
            return torch.stack([block.T @ sites[part] for part, block in self.blocks()]).sum(0)
        shaped = sites.to(self.root.dtype).unflatten(0, self.root.shape[::2])
        return self.precision.whiten(self.features.vjp(self.inputs, self.root @ shaped).T.double()).T

    def joined(self, other: SiteFeatures) -> Float[Tensor, "M P"] | None:
        """The rows of both, if both are kept."""
        if self._rows is None or other._rows is None:
            return None
        return torch.cat([self._rows, other._rows])

    def blocks(self) -> Iterator[tuple[slice, Float[Tensor, "m P"]]]:
        """Consecutive blocks of rows of Φ, in float64."""
        if self.kept() and self._rows is not None:
            for part in chunks(self.size, _BLOCK):
                yield part, self._rows[part]
        else:
            yield from self._computed("features of the data, made anew")

    def _computed(self, what: str) -> Iterator[tuple[slice, Float[Tensor, "m P"]]]:
        rank = self.root.shape[2]
        parts = list(chunks(num_examples(self.inputs), self.features.chunk(self.inputs, 0.25)))
        for part in track(parts, what):
            rows = self.root[part].mT @ self.features.jacobian(take(self.inputs, part))
            yield slice(part.start * rank, part.stop * rank), self.precision.whiten(rows).flatten(0, 1).double()

    def kept(self) -> bool:
        """Whether all rows are in memory; they are made here the first time, if they fit."""
        fits = 8 * self.size * self.features.num_weights <= _SHARE * self.features.budget()
        if self._rows is None and fits:
            rows = torch.empty(self.size, self.features.num_weights, dtype=torch.float64, device=self.root.device)
            for part, block in self._computed("features of the data"):
                rows[part] = block
            self._rows = rows
        return self._rows is not None
