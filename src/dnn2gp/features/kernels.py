"""Kernel matrices J Σ J'ᵀ, computed block by block within the memory budget."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.budget.chunked import Chunked
from dnn2gp.features.budget.kernel_blocks import KernelBuffer, PairPlan, PairSide, pairs, plan_pairs
from dnn2gp.features.budget.peak import MORE, Peak, peak_of_pairs
from dnn2gp.features.budget.plan import Plan, Work
from dnn2gp.features.checks import check_precision
from dnn2gp.features.factors import Factors
from dnn2gp.features.whitener import Unit, Whitener
from dnn2gp.network.inputs import Inputs, differentiable, most_at_once, num_examples, take
from dnn2gp.support.allocator import give_back, returning_blocks
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import require

# How much more memory rows take while a covariance mixes them: its products have copies of their own.
_MIXING = 1.75


@dataclass(frozen=True)
class KernelKind:
    """What a kernel has for each pair of examples: all pairs of rows, the sum over equal rows, or equal rows."""

    work: str
    """The method that computes it."""
    what: str
    """Its name for users."""
    product: Callable[[Factors, Factors], Tensor]
    entries: Callable[[int, int], tuple[tuple[int, ...], tuple[int, ...]]]
    """The axes that rows of the left and of the right examples add to its shape."""

    @property
    def whole(self) -> bool:
        """Whether all pairs of rows are computed."""
        return self is FULL

    @property
    def axis(self) -> int:
        """The axis of the right examples."""
        return 2 if self.whole else 1

    def shape(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, ...]:
        """The shape of a kernel, from the numbers of examples and of rows per example on both sides."""
        own, others = self.entries(left[1], right[1])
        return (left[0], *own, right[0], *others)

    @property
    def instead(self) -> str:
        """What to do if it does not fit into the memory."""
        smaller = "use the trace or diagonal kernel, " if self.whole else ""
        return (
            f"Pass fewer inputs at a time, {smaller}write the result to disk with out=FILE, or freeze layers that "
            "need no uncertainty (requires_grad_(False))."
        )


FULL = KernelKind("kernel_full", "kernel", lambda a, b: a.full(b), lambda Q, R: ((Q,), (R,)))
TRACE = KernelKind("kernel_trace", "trace kernel", lambda a, b: a.trace(b), lambda Q, R: ((), ()))
DIAGONAL = KernelKind("kernel_diagonal", "diagonal kernel", lambda a, b: a.diagonal(b), lambda Q, R: ((), (Q,)))
KERNELS = {kind.work: kind for kind in (FULL, TRACE, DIAGONAL)}


class Kernels(Chunked):
    """The kernels of features. Σ = precision⁻¹ is a covariance of the weights."""

    @abstractmethod
    def check(self, inputs: Inputs) -> Inputs:
        """These inputs, or an error that says what is wrong with them."""

    @abstractmethod
    def parts(self, inputs: Inputs) -> list[slice]:
        """The ranges of weights that the blocks of these inputs are made of."""

    @abstractmethod
    def pair_operations(self, inputs: Inputs, left_rows: int, right_rows: int, *, trace: bool = False) -> float:
        """Operations of the product of the rows of two examples: all pairs of rows, or only equal ones."""

    def kernel_full(
        self,
        inputs: Inputs,
        precision: Whitener,
        other_inputs: Inputs | None = None,
        other: Kernels | None = None,
        out: Path | None = None,
    ) -> Float[Tensor, "N Q M Q2"]:
        """J(x) Σ J'(x')ᵀ for all pairs; `other` (default: these features) has J'.

        `out` is a file for a result that is larger than the memory: the tensor is then a view of that file.
        """
        return self._kernel(FULL, inputs, precision, other_inputs, other, out)

    def kernel_trace(
        self, inputs: Inputs, precision: Whitener, other_inputs: Inputs | None = None, out: Path | None = None
    ) -> Float[Tensor, "N M"]:
        """tr J(x) Σ J(x')ᵀ for all pairs: the sum over outputs of their separate kernels."""
        return self._kernel(TRACE, inputs, precision, other_inputs, None, out)

    def kernel_diagonal(
        self, inputs: Inputs, precision: Whitener, other_inputs: Inputs | None = None, out: Path | None = None
    ) -> Float[Tensor, "N M Q"]:
        """[J(x) Σ J(x')ᵀ]_qq for all pairs and outputs q."""
        return self._kernel(DIAGONAL, inputs, precision, other_inputs, None, out)

    def white_factors(
        self, inputs: Inputs, precision: Whitener, cotangents: Float[Tensor, "N Q R"] | None = None
    ) -> Factors:
        """UᵀJ Σ^{½}, each block in the form that is cheaper to use."""
        return precision.whitened(self.factors(inputs, cotangents)).compact()

    def structured(self, inputs: Inputs, precision: Whitener) -> bool:
        """Whether Σ is one number on each range of weights, so that no rows need to be formed."""
        return all(precision.scale(part) is not None for part in self.parts(inputs))

    def side(self, inputs: Inputs, precision: Whitener) -> PairSide:
        """These examples as one axis of a kernel matrix with the covariance Σ."""
        rows = self.num_outputs
        measured = self.measured(inputs, rows, self._white(inputs, precision))

        def make(part: slice) -> Factors:
            factors = self.white_factors(take(inputs, part), precision)
            give_back(self.budget())  # what is freed between factors that are kept is not used again otherwise
            return factors

        most = min(self.fast_chunk(inputs, rows), most_at_once(inputs))
        need = measured.need if self.structured(inputs, precision) else measured.need.times(_MIXING)
        return PairSide(num_examples(inputs), rows, measured.kept, need, make, most, self.fewest)

    def plan_kernel(self, kind: KernelKind, inputs: Inputs, other: Inputs | None, *, out: bool) -> Plan:
        """What a kernel needs with one prior precision per layer; `out`: the result goes to a file."""
        count, columns = num_examples(inputs), num_examples(inputs if other is None else other)
        Q, unit = self.num_outputs, Unit(self.anchor.dtype)
        result = 0 if out else prod(kind.shape((count, Q), (columns, Q))) * self.anchor.element_size()
        require(result, self.budget(), f"The result of {kind.work}", kind.instead)
        right = None if other is None else self.side(other, unit)
        found = self._pair_plan(kind, (inputs, self.side(inputs, unit)), (self, other, right), unit, result)
        made = found.made(count, None if other is None else columns)
        pairs_made = count * columns * (0.5 if other is None else 1.0)
        operations = self.operations(inputs, Q) * made
        operations += pairs_made * self.pair_operations(inputs, Q, Q, trace=not kind.whole)
        return Plan(kind.work, count, found.block, found.held, result + found.bytes, result, operations, self.budget())

    def _kernel(
        self,
        kind: KernelKind,
        inputs: Inputs,
        precision: Whitener,
        other_inputs: Inputs | None,
        other: Kernels | None,
        out: Path | None,
    ) -> Tensor:
        check_precision(precision)
        right_map = other or self
        inputs = self.check(inputs)
        other_inputs = None if other_inputs is None else right_map.check(other_inputs)
        symmetric = other_inputs is None and right_map is self
        if out is not None and (differentiable(inputs) or (other_inputs is not None and differentiable(other_inputs))):
            raise InputError(
                "out: expected inputs that do not require a gradient, because a kernel in a file has none. Detach "
                "the inputs, or leave out= out."
            )
        columns = None if symmetric else inputs if other_inputs is None else other_inputs
        left, right = self.side(inputs, precision), None if columns is None else right_map.side(columns, precision)
        mate = left if right is None else right
        shape = kind.shape((left.num_examples, left.rows), (mate.num_examples, mate.rows))
        dtype, device = torch.promote_types(self.anchor.dtype, precision.dtype), self.anchor.device
        give_back(self.budget())
        buffer = KernelBuffer(shape, dtype, device, out, self.budget(), f"The {kind.what}")
        with buffer as result, returning_blocks(self.budget()):
            plan = self._pair_plan(kind, (inputs, left), (right_map, columns, right), precision, result.bytes)
            for rows, others, a, b in pairs(left, right, plan, kind.what):
                block = kind.product(a, b)
                result.write(rows, others, block, kind.axis, mirrored=symmetric and rows != others)
                del a, b, block
        return result.tensor()

    def _pair_plan(
        self,
        kind: KernelKind,
        own: tuple[Inputs, PairSide],
        other: tuple[Kernels, Inputs | None, PairSide | None],
        precision: Whitener,
        beside: int,
    ) -> PairPlan:
        """The blocks of a kernel between these examples and others (None: the same)."""
        (inputs, left), (right_map, columns, right) = own, other
        product = self._product_need(kind, inputs, right_map, inputs if columns is None else columns, precision)
        what = f"The {kind.what}"
        return plan_pairs(left, right, product, self.budget(), what, kind.instead, whole=kind.whole, beside=beside)

    def _product_need(
        self, kind: KernelKind, inputs: Inputs, other: Kernels, other_inputs: Inputs, precision: Whitener
    ) -> Peak:
        """The memory of the product of n examples with n others, measured on up to three."""
        sides = (self, inputs), (other, other_inputs)
        tried = tuple(side.rows_tried(xs, side.num_outputs) for side, xs in sides)
        names = tuple((side.name, side.num_outputs, side.kind(xs)) for side, xs in sides)
        works = tuple(side._white(xs, precision) for side, xs in sides)

        def white(index: int, rows: int) -> Factors:
            side, xs = sides[index]
            return works[index].use(side.trial(xs, rows).factors[MORE]).densest()

        def measure() -> Peak:
            factor = max(side.num_outputs / rows for (side, _), rows in zip(sides, tried, strict=True))
            few = {False: (white(0, tried[0]), white(1, tried[1]))}
            if factor > 1 and min(tried) > 1:
                few[True] = white(0, tried[0] // 2), white(1, tried[1] // 2)

            def work(count: int, half: bool) -> Tensor | None:
                if half not in few:
                    return None
                left, right = (each.take(slice(0, count)) for each in few[half])
                return kind.product(left, right)

            with torch.inference_mode(False):
                return peak_of_pairs(work, factor)

        key = "product", kind.work, names, tried, tuple(work.key for work in works)
        return self.knowledge.find(key, measure)

    def _white(self, inputs: Inputs, precision: Whitener) -> Work:
        key = type(precision), precision.dtype, self.structured(inputs, precision)
        return Work("J Σ^½", lambda factors: precision.whitened(factors).compact(), key)
