"""Products with the features φ_w(x)ᵀ ∈ R^{Q×P} of Eq. (5); for Laplace-GGN φᵀ = J, the Jacobian of the network.

A feature map has to say what SᵀJ is for a few examples, by blocks (`factors`), and what that costs (`footprint`).
Every product is defined here from chunks of it, within a memory budget.

    J     rows of all examples, (N·Q) × P          Σ = precision⁻¹     a covariance of the weights
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.errors import InputError
from dnn2gp.features.cotangents import Cotangents
from dnn2gp.features.factors import Factors
from dnn2gp.features.footprint import Footprint
from dnn2gp.features.kronecker import KroneckerFactors, kronecker_factors
from dnn2gp.features.pairs import Side, pairs, plan_pairs
from dnn2gp.features.plan import Plan
from dnn2gp.features.result import Result
from dnn2gp.features.whitener import Unit, Whitener
from dnn2gp.inputs import Inputs, differentiable, num_examples, take
from dnn2gp.memory import chunk_size, chunks, default_budget, require
from dnn2gp.progress import track

# The most examples of a chunk.
_CHUNK = 200


class FeatureMap(ABC):
    """φ at a fixed anchor w. Q is the number of features columns an example has (K for the Jacobian)."""

    num_weights: int
    num_outputs: int
    anchor: Float[Tensor, " P"]
    memory_budget: int | None

    @abstractmethod
    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None) -> Factors:
        """Uᵀ φ_w(x)ᵀ of each example by blocks, U its cotangents (default: the identity, so that it is φᵀ).

        U (N × Q × R) may be a function of the outputs, such as a likelihood's `noise_precision_root`: it is then called
        in the forward pass that is made anyway.
        """

    @abstractmethod
    def footprint(self, num_rows: int) -> Footprint:
        """What the factors of one example with R rows cost."""

    @property
    def parts(self) -> list[slice]:
        """The ranges of weights that blocks are made of."""
        return [slice(0, self.num_weights)]

    @property
    def layers(self) -> list[tuple[slice, ...]]:
        """The ranges of weights of each layer; here, all weights as one."""
        return [(slice(0, self.num_weights),)]

    @property
    def _layer_sizes(self) -> list[int]:
        return [sum(part.stop - part.start for part in parts) for parts in self.layers]

    def pair_operations(self, left_rows: int, right_rows: int, *, trace: bool = False) -> float:
        """Operations of the product of the rows of two examples: all pairs of rows, or only equal ones."""
        return 2.0 * left_rows * (1 if trace else right_rows) * self.num_weights

    def jacobian(self, inputs: Inputs) -> Float[Tensor, "N Q P"]:
        """φ_w(x)ᵀ of each example, all in memory."""
        return self.factors(inputs).rows()

    def pull_each(self, inputs: Inputs, cotangents: Float[Tensor, "N Q"]) -> Float[Tensor, "N P"]:
        """J(xᵢ)ᵀ uᵢ of each example apart."""
        return self.factors(inputs, cotangents.unsqueeze(-1)).rows().squeeze(1)

    def jvp(self, inputs: Inputs, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "N Q S"]:
        """J V."""
        return torch.cat([factors.push(vectors) for _, factors in self._factors(inputs, "J v")])

    def vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N Q S"]) -> Float[Tensor, "P S"]:
        """Jᵀ U = Σᵢ φ_w(xᵢ) Uᵢ."""
        total = self.anchor.new_zeros(self.num_weights, cotangents.shape[-1])
        for part, factors in self._factors(inputs, "Jᵀ u"):
            total += factors.pull(cotangents[part])
        return total

    def ggn(self, inputs: Inputs, root: Cotangents) -> Float[Tensor, "P P"]:
        """Jᵀ Λ J = Σᵢ φ_w(xᵢ) Λᵢ φ_w(xᵢ)ᵀ with Λᵢ = Sᵢ Sᵢᵀ, in float64 whatever the rows are."""
        total = torch.zeros(self.num_weights, self.num_weights, dtype=torch.float64, device=self.anchor.device)
        for _, factors in self._factors(inputs, "JᵀΛJ", root, formed=True, fixed=8 * self.num_weights**2):
            rows = factors.rows().flatten(0, 1).double()
            total.addmm_(rows.T, rows)
        return total

    def ggn_diagonal(self, inputs: Inputs, root: Cotangents) -> Float[Tensor, " P"]:
        """diag(Jᵀ Λ J), summed over chunks in float64."""
        total = torch.zeros(self.num_weights, dtype=torch.float64, device=self.anchor.device)
        for _, factors in self._factors(inputs, "diag JᵀΛJ", root):
            total += factors.squares()
        return total

    def squared_gradients(self, inputs: Inputs, cotangents: Float[Tensor, "N Q"]) -> Float[Tensor, " P"]:
        """Σᵢ (φ_w(xᵢ) uᵢ)², entry by entry: of u = r, the sum of squared gradients of the examples (VOGN)."""
        return self.ggn_diagonal(inputs, cotangents.unsqueeze(-1))

    def ggn_blocks(self, inputs: Inputs, root: Cotangents) -> list[Float[Tensor, "p p"]]:
        """The blocks of Jᵀ Λ J on its diagonal, one for each of `layers`, in float64."""
        totals = [torch.zeros(size, size, dtype=torch.float64, device=self.anchor.device) for size in self._layer_sizes]
        fixed = sum(8 * size**2 for size in self._layer_sizes)
        for _, factors in self._factors(inputs, "blocks of JᵀΛJ", root, formed=True, fixed=fixed):
            for total, parts in zip(totals, self.layers, strict=True):
                rows = factors.columns(parts).flatten(0, 1).double()
                total.addmm_(rows.T, rows)
        return totals

    def kronecker(self, inputs: Inputs, root: Cotangents) -> list[KroneckerFactors]:
        """The Kronecker factors of Jᵀ Λ J for each layer (KFAC)."""
        return kronecker_factors(factors for _, factors in self._factors(inputs, "Kronecker factors", root))

    def kronecker_numbers(self) -> int:
        """How many numbers the Kronecker factors of all layers hold."""
        return sum((part.stop - part.start) ** 2 for part in self.parts)

    def covariance(self, inputs: Inputs, precision: Whitener) -> Float[Tensor, "N Q Q"]:
        """J(x) Σ J(x)ᵀ of each example."""
        formed = not self._structured(precision)
        return torch.cat([precision.marginal(factors) for _, factors in self._factors(inputs, "J Σ Jᵀ", formed=formed)])

    def kernel_full(
        self,
        inputs: Inputs,
        precision: Whitener,
        other_inputs: Inputs | None = None,
        other: FeatureMap | None = None,
        out: Path | None = None,
    ) -> Float[Tensor, "N Q M Q2"]:
        """J(x) Σ J'(x')ᵀ for all pairs; `other` (default: this map) gives J'. `out` is a file for a result that is
        larger than the memory: the tensor is then a view of that file."""
        right = other or self
        shape = (num_examples(inputs), self.num_outputs)
        columns = (num_examples(inputs if other_inputs is None else other_inputs), right.num_outputs)
        return self._kernel(
            "kernel", (*shape, *columns), lambda a, b: a.full(b), inputs, precision, other_inputs, other, out
        )

    def kernel_trace(
        self, inputs: Inputs, precision: Whitener, other_inputs: Inputs | None = None, out: Path | None = None
    ) -> Float[Tensor, "N M"]:
        """tr J(x) Σ J(x')ᵀ for all pairs: the sum over outputs of their separate kernels."""
        shape = (num_examples(inputs), num_examples(inputs if other_inputs is None else other_inputs))
        return self._kernel("trace kernel", shape, lambda a, b: a.trace(b), inputs, precision, other_inputs, None, out)

    def kernel_diagonal(
        self, inputs: Inputs, precision: Whitener, other_inputs: Inputs | None = None, out: Path | None = None
    ) -> Float[Tensor, "N M Q"]:
        """[J(x) Σ J(x')ᵀ]_qq for all pairs and outputs q."""
        shape = (num_examples(inputs), num_examples(inputs if other_inputs is None else other_inputs), self.num_outputs)
        return self._kernel(
            "diagonal kernel", shape, lambda a, b: a.diagonal(b), inputs, precision, other_inputs, None, out
        )

    def budget(self) -> int:
        """The memory budget in bytes: the user's, or half of what is free now."""
        return default_budget() if self.memory_budget is None else self.memory_budget

    def chunk(
        self, inputs: Inputs, num_rows: int | None = None, *, formed: bool = False, fixed: int = 0, extra: int = 0
    ) -> int:
        """Examples at a time so that their factors (`formed`: and their rows, in float64) stay within the budget.

        `fixed` bytes are held besides, and `extra` for each example.
        """
        each = self.footprint(self.num_outputs if num_rows is None else num_rows)
        bytes_per_example = self._example_bytes(each, formed) + extra
        budget = self.budget()
        if fixed:
            require(fixed + bytes_per_example, budget, "The result with the Jacobian of a single example", _FEWER)
        size = chunk_size(num_examples(inputs), bytes_per_example, budget - fixed, "The Jacobian")
        return min(size, self.fast_chunk(self.num_outputs if num_rows is None else num_rows))

    def fast_chunk(self, num_rows: int) -> int:
        """The most examples that are made at once: beyond it nothing gets faster, and caches overflow."""
        return _CHUNK

    def white_factors(
        self, inputs: Inputs, precision: Whitener, cotangents: Float[Tensor, "N Q R"] | None = None
    ) -> Factors:
        """UᵀJ Σ^{½}, each block in the form that is cheaper to use."""
        return precision.whitened(self.factors(inputs, cotangents)).compact()

    def side(self, inputs: Inputs, precision: Whitener, cotangents: Float[Tensor, "N Q R"] | None = None) -> Side:
        """These examples as one axis of a kernel matrix with the covariance Σ."""
        rows = self.num_outputs if cotangents is None else cotangents.shape[2]
        each = self.footprint(rows)
        dtype = torch.promote_types(self.anchor.dtype, precision.dtype)
        wide = dtype.itemsize // self.anchor.element_size()
        structured = self._structured(precision)
        kept = (each.factors if structured else each.rows) * wide
        making = each.capture + each.factors + (0 if structured else 2 * each.rows * wide)

        def make(part: slice) -> Factors:
            own = None if cotangents is None else cotangents[part]
            return self.white_factors(take(inputs, part), precision, own)

        return Side(num_examples(inputs), rows, kept, making, make, self.fast_chunk(rows))

    def plan(self, work: str, inputs: Inputs, other: Inputs | None = None, *, out: bool = False) -> Plan:
        """What a product of this name will need, before it is computed, with one prior precision a layer.

        `out`: the result goes to a file and does not count. What cannot fit into the budget is an error here as there.
        """
        if work in _KERNELS:
            return self._plan_kernel(work, inputs, other, out)
        results = {
            "covariance": num_examples(inputs) * self.num_outputs**2 * self.anchor.element_size(),
            "ggn": 8 * self.num_weights**2,
            "ggn_diagonal": 8 * self.num_weights,
            "jacobian": num_examples(inputs) * self.footprint(self.num_outputs).rows,
        }
        if work not in results:
            raise InputError(f"work: expected one of {[*_KERNELS, *results]}; got {work!r}.")
        return self._plan_sum(work, inputs, results[work])

    def _plan_kernel(self, work: str, inputs: Inputs, other: Inputs | None, out: bool) -> Plan:
        count, columns = num_examples(inputs), num_examples(inputs if other is None else other)
        Q, unit = self.num_outputs, Unit(self.anchor.dtype)
        entry = _KERNELS[work](Q) * self.anchor.element_size()
        result = 0 if out else count * columns * entry
        require(result, self.budget(), f"The result of {work}", _INSTEAD)
        left, right = self.side(inputs, unit), None if other is None else self.side(other, unit)
        found = plan_pairs(left, right, entry, self.budget() - result, work, _INSTEAD, whole=work == "kernel_full")
        pairs_made = count * columns * (0.5 if other is None else 1.0)
        operations = self.footprint(Q).operations * (count if other is None else count + columns)
        operations += pairs_made * self.pair_operations(Q, Q, trace=work != "kernel_full")
        return Plan(work, count, found.block, found.held, result + found.bytes, result, operations, self.budget())

    def _plan_sum(self, work: str, inputs: Inputs, result: int) -> Plan:
        count, Q, formed = num_examples(inputs), self.num_outputs, work in ("ggn", "jacobian")
        each = self.footprint(Q)
        chunk = self.chunk(inputs, formed=formed, fixed=result)
        working = chunk * self._example_bytes(each, formed)
        products = {"ggn": 2.0 * Q * self.num_weights**2, "covariance": 2.0 * Q * Q * self.num_weights}
        operations = count * (each.operations + products.get(work, 2.0 * Q * self.num_weights))
        return Plan(work, count, chunk, chunk, result + working, result, operations, self.budget())

    def _example_bytes(self, each: Footprint, formed: bool) -> int:
        """What an example holds at once: factors while they are made, and rows in float64 if they are formed."""
        wide = torch.float64.itemsize // self.anchor.element_size()
        return each.capture + each.factors + ((1 + 2 * wide) * each.rows if formed else 0)

    def _structured(self, precision: Whitener) -> bool:
        """Whether Σ is one number on each range of weights, so that no rows need to be formed."""
        return all(precision.scale(part) is not None for part in self.parts)

    def _factors(
        self,
        inputs: Inputs,
        what: str,
        cotangents: Cotangents | None = None,
        *,
        formed: bool = False,
        fixed: int = 0,
    ) -> Iterator[tuple[slice, Factors]]:
        given = isinstance(cotangents, Tensor)
        size = self.chunk(inputs, cotangents.shape[2] if given else None, formed=formed, fixed=fixed)
        for part in track(list(chunks(num_examples(inputs), size)), what):
            yield part, self.factors(take(inputs, part), cotangents[part] if given else cotangents)

    def _kernel(
        self,
        what: str,
        shape: tuple[int, ...],
        product: Callable[[Factors, Factors], Tensor],
        inputs: Inputs,
        precision: Whitener,
        other_inputs: Inputs | None,
        other: FeatureMap | None,
        out: Path | None,
    ) -> Tensor:
        """A kernel block by block; axis 0 counts the examples, and axis 1 (or 2, in the full kernel) the others."""
        right_map = other or self
        symmetric = other_inputs is None and right_map is self
        dtype = torch.promote_types(self.anchor.dtype, precision.dtype)
        left = self.side(inputs, precision)
        right = None if symmetric else right_map.side(inputs if other_inputs is None else other_inputs, precision)
        if out is not None and (differentiable(inputs) or (other_inputs is not None and differentiable(other_inputs))):
            raise InputError("A kernel in a file has no gradient: detach the inputs, or leave out= away.")
        axis = 2 if len(shape) == 4 else 1
        with Result(shape, dtype, self.anchor.device, out, self.budget(), f"The {what}") as result:
            entry = dtype.itemsize * (shape[1] * shape[3] if len(shape) == 4 else shape[2] if len(shape) == 3 else 1)
            room, whole = self.budget() - result.bytes, len(shape) == 4
            plan = plan_pairs(left, right, entry, room, f"The {what}", _INSTEAD, whole=whole)
            for rows, columns, a, b in pairs(left, right, plan, what):
                block = product(a, b)
                mirrored = symmetric and rows != columns
                result.write(rows, columns, block, axis, mirrored)
        return result.tensor()


# The numbers of a pair of examples in each kind of kernel, for Q outputs.
_KERNELS: dict[str, Callable[[int], int]] = {
    "kernel_full": lambda Q: Q * Q,
    "kernel_trace": lambda Q: 1,
    "kernel_diagonal": lambda Q: Q,
}
_FEWER = "Freeze layers that need no uncertainty (requires_grad_(False)), or use fewer outputs."
_INSTEAD = (
    "Take fewer inputs at a time, the trace or diagonal kernel, or out=FILE, which holds the result on disk; or freeze "
    "layers that need no uncertainty (requires_grad_(False))."
)
