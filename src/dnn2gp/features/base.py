"""Products with the features φ_w(x)ᵀ ∈ R^{Q×P} of Eq. (5); for Laplace-GGN φᵀ = J, the Jacobian of the network.

A feature map has to say only what φᵀ is for a few examples (`jacobian`). Every product is defined here from chunks of
it, within a memory budget; an engine that can form a product without the Jacobian overrides that product.

    J     rows of all examples, (N·Q) × P          Σ = precision⁻¹     a covariance of the weights
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.inputs import Inputs, num_examples, take
from dnn2gp.memory import chunk_size, chunks, default_budget, require
from dnn2gp.network import Network
from dnn2gp.progress import track


class Whitener(ABC):
    """A covariance Σ of the weights, known by a square root: rows J become J Σ^{½}."""

    @abstractmethod
    def whiten(self, rows: Float[Tensor, "*B P"]) -> Float[Tensor, "*B P"]:
        """J Σ^{½}, so that whiten(J) whiten(J')ᵀ = J Σ J'ᵀ."""

    @abstractmethod
    def unwhiten(self, noise: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Σ^{½} ε: columns of covariance Σ from columns of covariance I; whiten(J) ε = J unwhiten(ε)."""


class FeatureMap(ABC):
    """φ at a fixed anchor w. Q is the number of features columns an example has (K for the Jacobian)."""

    num_weights: int
    num_outputs: int
    anchor: Float[Tensor, " P"]
    memory_budget: int | None

    # Three copies of a chunk live at once: the rows, their whitened form, and a temporary of the product.
    _COPIES = 3

    @abstractmethod
    def jacobian(self, inputs: Inputs) -> Float[Tensor, "N Q P"]:
        """φ_w(x)ᵀ of each example, all in memory."""

    def jvp(self, inputs: Inputs, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "N Q S"]:
        """J V."""
        return torch.cat([rows @ vectors.to(rows.dtype) for _, rows in self._rows(inputs, "J v")])

    def vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N Q S"]) -> Float[Tensor, "P S"]:
        """Jᵀ U = Σᵢ φ_w(xᵢ) Uᵢ."""
        total = self.anchor.new_zeros(self.num_weights, cotangents.shape[-1])
        for part, rows in self._rows(inputs, "Jᵀ u"):
            total += torch.einsum("nqp,nqs->ps", rows, cotangents[part].to(rows.dtype))
        return total

    def ggn(self, inputs: Inputs, root: Float[Tensor, "N Q R"]) -> Float[Tensor, "P P"]:
        """Jᵀ Λ J = Σᵢ φ_w(xᵢ) Λᵢ φ_w(xᵢ)ᵀ with Λᵢ = Sᵢ Sᵢᵀ, in float64 whatever the rows are."""
        total = torch.zeros(self.num_weights, self.num_weights, dtype=torch.float64, device=self.anchor.device)
        for part, rows in self._rows(inputs, "JᵀΛJ"):
            factor = (root[part].mT @ rows).reshape(-1, self.num_weights).double()
            total += factor.T @ factor
        return total

    def ggn_diagonal(self, inputs: Inputs, root: Float[Tensor, "N Q R"]) -> Float[Tensor, " P"]:
        """diag(Jᵀ Λ J), summed over chunks in float64."""
        total = torch.zeros(self.num_weights, dtype=torch.float64, device=self.anchor.device)
        for part, rows in self._rows(inputs, "diag JᵀΛJ"):
            total += (root[part].mT @ rows).square().sum((0, 1))
        return total

    def covariance(self, inputs: Inputs, precision: Whitener) -> Float[Tensor, "N Q Q"]:
        """J(x) Σ J(x)ᵀ of each example."""
        blocks = []
        for _, rows in self._rows(inputs, "J Σ Jᵀ"):
            white = precision.whiten(rows)
            blocks.append(white @ white.mT)
        return torch.cat(blocks)

    def kernel_full(
        self, inputs: Inputs, precision: Whitener, other_inputs: Inputs | None = None, other: FeatureMap | None = None
    ) -> Float[Tensor, "N Q M Q2"]:
        """J(x) Σ J'(x')ᵀ for all pairs; `other` (default: this map) gives J'."""
        blocks = _Blocks(self, inputs, precision, other, other_inputs)
        rows, columns = blocks.num_rows * self.num_outputs, blocks.num_columns * blocks.right.num_outputs
        require(
            8 * rows * columns,
            self.budget(),
            f"A full kernel of {rows} × {columns}",
            "Take fewer inputs at a time, or the trace or diagonal kernel.",
        )
        result = torch.empty(0)
        for rows, columns, left, right in blocks.pairs("kernel"):
            block = (
                (left.flatten(0, 1) @ right.flatten(0, 1).T).unflatten(0, left.shape[:2]).unflatten(2, right.shape[:2])
            )
            if rows.start == columns.start == 0:
                result = block.new_empty(blocks.num_rows, left.shape[1], blocks.num_columns, right.shape[1])
            result[rows, :, columns, :] = block
            if blocks.symmetric:
                result[columns, :, rows, :] = block.permute(2, 3, 0, 1)
        return result

    def kernel_trace(
        self, inputs: Inputs, precision: Whitener, other_inputs: Inputs | None = None
    ) -> Float[Tensor, "N M"]:
        """tr J(x) Σ J(x')ᵀ for all pairs: the sum over outputs of their separate kernels."""
        blocks = _Blocks(self, inputs, precision, None, other_inputs)
        return blocks.fill("trace kernel", (), lambda left, right: left.flatten(1) @ right.flatten(1).T)

    def kernel_diagonal(
        self, inputs: Inputs, precision: Whitener, other_inputs: Inputs | None = None
    ) -> Float[Tensor, "N M Q"]:
        """[J(x) Σ J(x')ᵀ]_qq for all pairs and outputs q."""
        blocks = _Blocks(self, inputs, precision, None, other_inputs)
        return blocks.fill(
            "diagonal kernel",
            (self.num_outputs,),
            lambda left, right: (left.transpose(0, 1) @ right.permute(1, 2, 0)).permute(1, 2, 0),
        )

    def budget(self) -> int:
        """The memory budget in bytes: the user's, or half of what is free now."""
        return default_budget() if self.memory_budget is None else self.memory_budget

    def chunk(self, inputs: Inputs, share: float = 1.0, extra: int = 0) -> int:
        """Examples at a time so that their rows, products and `extra` bytes each stay within a share of the budget."""
        return self._chunk(inputs, self._COPIES * self.num_outputs * self.num_weights * 8 + extra, share)

    def _chunk(self, inputs: Inputs, bytes_per_example: int, share: float) -> int:
        return chunk_size(num_examples(inputs), bytes_per_example, int(self.budget() * share), "The Jacobian")

    def _rows(self, inputs: Inputs, what: str) -> Iterator[tuple[slice, Float[Tensor, "n Q P"]]]:
        size = self.chunk(inputs)
        parts = list(chunks(num_examples(inputs), size))
        for part in track(parts, what):
            yield part, self.jacobian(take(inputs, part))


class NetworkFeatures(FeatureMap):
    """φ_w(x)ᵀ = J_w(x), the Jacobian of a network at the anchor, however it is made: what a GP predicts with."""

    network: Network

    @abstractmethod
    def outputs(self, inputs: Inputs) -> Float[Tensor, "N K"]:
        """f_w(x) at the anchor."""

    @abstractmethod
    def pull_each(self, inputs: Inputs, cotangents: Float[Tensor, "N K"]) -> Float[Tensor, "N P"]:
        """J(xᵢ)ᵀ uᵢ of each example apart."""

    @abstractmethod
    def residual_curvature(
        self, inputs: Inputs, residual: Float[Tensor, "N K"], vectors: Float[Tensor, "P S"]
    ) -> Float[Tensor, "P S"]:
        """Σᵢ (∇²_ww f_w(xᵢ) · rᵢ) v, the second term of the Hessian in Eq. (6)."""


class _Blocks:
    """The blocks of a kernel matrix: pairs of chunks of whitened rows, one triangle where it is symmetric."""

    def __init__(
        self, left: FeatureMap, inputs: Inputs, precision: Whitener, right: FeatureMap | None, other: Inputs | None
    ) -> None:
        self.left, self.right = left, right or left
        self.inputs, self.precision = inputs, precision
        self.symmetric = other is None and self.right is left
        self.other = inputs if other is None else other
        self.num_rows, self.num_columns = num_examples(inputs), num_examples(self.other)

    def pairs(self, what: str) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """(rows, columns, J Σ^{½} of the rows, J' Σ^{½} of the columns)."""
        row_parts = list(chunks(self.num_rows, self.left.chunk(self.inputs, 0.5)))
        column_parts = list(chunks(self.num_columns, self.right.chunk(self.other, 0.5)))
        if self.symmetric:
            column_parts = row_parts
        for rows in track(row_parts, what):
            left = self.precision.whiten(self.left.jacobian(take(self.inputs, rows)))
            for columns in column_parts:
                if self.symmetric and columns.start < rows.start:
                    continue
                same = self.symmetric and columns == rows
                right = left if same else self.precision.whiten(self.right.jacobian(take(self.other, columns)))
                yield rows, columns, left, right

    def fill(self, what: str, trailing: tuple[int, ...], product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """An N × M (× trailing) result from a product of two chunks."""
        result = torch.empty(0)
        for rows, columns, left, right in self.pairs(what):
            block = product(left, right)
            if rows.start == columns.start == 0:
                result = block.new_empty(self.num_rows, self.num_columns, *trailing)
            result[rows, columns] = block
            if self.symmetric:
                result[columns, rows] = block.transpose(0, 1)
        return result
