"""Products with the features φ_w(x)ᵀ ∈ R^{Q×P} of Eq. (5); for Laplace-GGN φᵀ = J, the Jacobian of the network.

A feature map has to say what SᵀJ is for a few examples, by blocks (`factors`), and what these hold (`footprint`).
Every product is defined here from chunks of it, as large as the memory budget allows: see `chunked.py`.

    J     rows of all examples, (N·Q) × P          Σ = precision⁻¹     a covariance of the weights
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.budget.chunked import Chunked
from dnn2gp.features.budget.kernel_buffer import KernelBuffer
from dnn2gp.features.budget.pairs import PairSide, pairs, plan_pairs
from dnn2gp.features.budget.plan import Plan
from dnn2gp.features.budget.work import Work
from dnn2gp.features.checks import check_cotangents, check_precision, check_vectors
from dnn2gp.features.cotangents import Cotangents
from dnn2gp.features.factors import Factors
from dnn2gp.features.kronecker_factors import KroneckerFactors, kronecker_factors, kronecker_sums
from dnn2gp.features.weight_gram import WeightGram
from dnn2gp.features.whitener import Unit, Whitener
from dnn2gp.network.inputs import Inputs, check_inputs, differentiable, num_examples, take
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import bounded, chunks, require


class FeatureMap(Chunked):
    """φ at a fixed anchor w. Q is the number of features columns an example has (K for the Jacobian)."""

    def check(self, inputs: Inputs) -> Inputs:
        """These inputs, or an error that says what is wrong with them."""
        return check_inputs(inputs)

    def _checked(self, inputs: Inputs, root: Cotangents) -> Inputs:
        inputs = self.check(inputs)
        check_cotangents(root, num_examples(inputs), self.num_outputs)
        return inputs

    @abstractmethod
    def outputs(self, inputs: Inputs) -> Float[Tensor, "N K"]:
        """f_w(x) at the anchor."""

    def outputs_and_factors(self, inputs: Inputs) -> tuple[Float[Tensor, "N K"], Factors]:
        """f_w(x) and φ_w(x)ᵀ of one chunk of examples.

        An engine that obtains both from a single forward pass overrides this; by default they are computed one after
        the other. Inputs that require a gradient keep their graph in both.
        """
        return self.outputs(inputs), self.factors(inputs)

    def parts(self, inputs: Inputs) -> list[slice]:
        """The ranges of weights that the blocks of these inputs are made of; here, one block for all weights."""
        return [slice(0, self.num_weights)]

    @property
    def layers(self) -> list[tuple[slice, ...]]:
        """The ranges of weights of each layer; here, all weights as one."""
        return [(slice(0, self.num_weights),)]

    @property
    def _layer_sizes(self) -> list[int]:
        return [sum(part.stop - part.start for part in parts) for parts in self.layers]

    def pair_operations(self, inputs: Inputs, left_rows: int, right_rows: int, *, trace: bool = False) -> float:
        """Operations of the product of the rows of two examples: all pairs of rows, or only equal ones."""
        return 2.0 * left_rows * (1 if trace else right_rows) * self.num_weights

    @bounded
    def jacobian(self, inputs: Inputs) -> Float[Tensor, "N Q P"]:
        """φ_w(x)ᵀ of each example, all in memory."""
        held = 2 * num_examples(inputs) * self.footprint(inputs, self.num_outputs).rows
        return _joined(self._used(inputs, _ROWS, fixed=held))

    @bounded
    def pull_each(self, inputs: Inputs, cotangents: Float[Tensor, "N Q"]) -> Float[Tensor, "N P"]:
        """J(xᵢ)ᵀ uᵢ of each example apart."""
        held = 2 * num_examples(inputs) * self.anchor.nbytes
        return _joined(self._used(inputs, _ROWS, cotangents.unsqueeze(-1), fixed=held)).squeeze(1)

    @bounded
    def jvp(self, inputs: Inputs, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "N Q S"]:
        """J V."""
        check_vectors(vectors, self.num_weights)
        work = Work("J v", lambda factors: factors.push(vectors), (vectors.shape[1],))
        held = num_examples(inputs) * self.num_outputs * vectors.shape[1] * self.anchor.element_size()
        return _joined(self._used(inputs, work, fixed=2 * held))

    @bounded
    def vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N Q S"]) -> Float[Tensor, "P S"]:
        """Jᵀ U = Σᵢ φ_w(xᵢ) Uᵢ."""
        check_cotangents(cotangents, num_examples(inputs), self.num_outputs)
        count = cotangents.shape[2]
        total = self.anchor.new_zeros(self.num_weights, count)
        work = Work("Jᵀ u", lambda factors: factors.pull(factors.ones(count)), (count,))
        for part, factors in self._factors(inputs, work, fixed=total.nbytes):
            total += factors.pull(cotangents[part])
            del factors  # so that the next ones are not made beside these
        return total

    @bounded
    def ggn(self, inputs: Inputs, root: Cotangents) -> Float[Tensor, "P P"]:
        """Jᵀ Λ J = Σᵢ φ_w(xᵢ) Λᵢ φ_w(xᵢ)ᵀ with Λᵢ = Sᵢ Sᵢᵀ, in float64 whatever the rows are."""
        inputs = self._checked(inputs, root)
        total = WeightGram(self.num_weights, self.anchor.device)
        for _, factors in self._factors(inputs, _WIDE_ROWS, root, fixed=total.bytes):
            total.add(factors)
            del factors
        return total.result()

    @bounded
    def ggn_diagonal(self, inputs: Inputs, root: Cotangents) -> Float[Tensor, " P"]:
        """diag(Jᵀ Λ J), summed over chunks in float64."""
        inputs = self._checked(inputs, root)
        total = torch.zeros(self.num_weights, dtype=torch.float64, device=self.anchor.device)
        for squares in self._used(inputs, _SQUARES, root, fixed=total.nbytes):
            total += squares
        return total

    def squared_gradients(self, inputs: Inputs, cotangents: Float[Tensor, "N Q"]) -> Float[Tensor, " P"]:
        """Σᵢ (φ_w(xᵢ) uᵢ)², entry by entry: of u = r, the sum of squared gradients of the examples (VOGN)."""
        return self.ggn_diagonal(inputs, cotangents.unsqueeze(-1))

    @bounded
    def gradient_moments(
        self, inputs: Inputs, cotangents: Callable[[Float[Tensor, "n Q"], slice], Float[Tensor, "n Q"]]
    ) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
        """Σᵢ gᵢ and Σᵢ gᵢ², entry by entry, of gᵢ = φ_w(xᵢ) uᵢ: what a step of VOGN needs, from one pass.

        u is a function of the outputs of some of the examples and of which ones they are. Summed in float64.
        """
        sums, squares = torch.zeros(2, self.num_weights, dtype=torch.float64, device=self.anchor.device)
        size = self.chunk(inputs, 1, _MOMENTS, fixed=2 * sums.nbytes)
        for part in chunks(num_examples(inputs), size):

            def columns(outputs: Float[Tensor, "m Q"], part: slice = part) -> Float[Tensor, "m Q 1"]:
                own = cotangents(outputs[: part.stop - part.start], part)  # a single example may be made twice
                return own.expand(len(outputs), -1).unsqueeze(-1)

            own, own_squares = self.factors(take(inputs, part), columns).moments()
            sums += own
            squares += own_squares
        return sums, squares

    @bounded
    def ggn_blocks(self, inputs: Inputs, root: Cotangents) -> list[Float[Tensor, "p p"]]:
        """The blocks of Jᵀ Λ J on its diagonal, one for each of `layers`, in float64."""
        inputs = self._checked(inputs, root)
        totals = [torch.zeros(size, size, dtype=torch.float64, device=self.anchor.device) for size in self._layer_sizes]
        for _, factors in self._factors(inputs, self._layer_rows(), root, fixed=sum(total.nbytes for total in totals)):
            for total, parts in zip(totals, self.layers, strict=True):
                rows = factors.columns(parts).flatten(0, 1).double()
                total.addmm_(rows.T, rows)
                del rows
            del factors
        return totals

    @bounded
    def kronecker(self, inputs: Inputs, root: Cotangents) -> list[KroneckerFactors]:
        """The Kronecker factors of Jᵀ Λ J for each layer (KFAC)."""
        inputs = self._checked(inputs, root)
        held = 8 * self.kronecker_numbers(inputs)
        return kronecker_factors(self._used(inputs, _KRONECKER, root, fixed=held))

    def kronecker_numbers(self, inputs: Inputs) -> int:
        """How many numbers the Kronecker factors of all layers hold."""
        return sum((part.stop - part.start) ** 2 for part in self.parts(inputs))

    @bounded
    def covariance(self, inputs: Inputs, precision: Whitener) -> Float[Tensor, "N Q Q"]:
        """J(x) Σ J(x)ᵀ of each example."""
        check_precision(precision)
        inputs = self.check(inputs)
        work = _marginal(precision)
        each = self.num_outputs**2 * self._wide(precision).itemsize
        return _joined(self._used(inputs, work, fixed=2 * num_examples(inputs) * each, extra=3 * each))

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

    def white_factors(
        self, inputs: Inputs, precision: Whitener, cotangents: Float[Tensor, "N Q R"] | None = None
    ) -> Factors:
        """UᵀJ Σ^{½}, each block in the form that is cheaper to use."""
        return precision.whitened(self.factors(inputs, cotangents)).compact()

    def side(self, inputs: Inputs, precision: Whitener, cotangents: Float[Tensor, "N Q R"] | None = None) -> PairSide:
        """These examples as one axis of a kernel matrix with the covariance Σ."""
        rows = self.num_outputs if cotangents is None else cotangents.shape[2]
        each = self.footprint(inputs, rows)
        itemsize = self._wide(precision).itemsize
        wide = itemsize // self.anchor.element_size()
        structured = self.structured(inputs, precision)
        kept = (each.factors if structured else each.rows) * wide

        def make(part: slice) -> Factors:
            own = None if cotangents is None else cotangents[part]
            return self.white_factors(take(inputs, part), precision, own)

        need = self.need(inputs, rows, _white(precision, structured))
        blocks = each.blocks if structured else ()
        most = self.fast_chunk(inputs, rows)
        return PairSide(num_examples(inputs), rows, kept, need, blocks, itemsize, make, most, self.fewest)

    def plan(self, work: str, inputs: Inputs, other: Inputs | None = None, *, out: bool = False) -> Plan:
        """What a product of this name will need, before it is computed, with one prior precision a layer.

        `out`: the result goes to a file and does not count. What cannot fit into the budget is an error here as there.
        """
        inputs, other = self.check(inputs), None if other is None else self.check(other)
        if work in _KERNELS:
            return self._plan_kernel(work, inputs, other, out)
        Q, P, count = self.num_outputs, self.num_weights, num_examples(inputs)
        size, each = self.anchor.element_size(), 2.0 * Q * P
        marginal = _marginal(Unit(self.anchor.dtype))
        known: dict[str, tuple[Work, int, float]] = {  # what is done, bytes of the result, operations of an example
            "covariance": (marginal, 2 * count * Q * Q * size, Q * each),
            "ggn": (_WIDE_ROWS, 8 * P**2, P * each),
            "ggn_blocks": (self._layer_rows(), sum(8 * own**2 for own in self._layer_sizes), P * each),
            "ggn_diagonal": (_SQUARES, 8 * P, each),
            "kronecker": (_KRONECKER, 8 * self.kronecker_numbers(inputs), each),
            "jacobian": (_ROWS, 2 * count * self.footprint(inputs, Q).rows, each),
        }
        if work not in known:
            raise InputError(f"work: expected one of {[*_KERNELS, *known]}; got {work!r}.")
        done, held, operations = known[work]
        chunk = self.chunk(inputs, work=done, fixed=held)
        total = self.need(inputs, Q, done)(max(chunk, self.fewest)) + held
        operations = count * (self.footprint(inputs, Q).operations + operations)
        result = held // 2 if work in ("covariance", "jacobian") else held
        return Plan(work, count, chunk, chunk, total, result, operations, self.budget())

    def _plan_kernel(self, work: str, inputs: Inputs, other: Inputs | None, out: bool) -> Plan:
        count, columns = num_examples(inputs), num_examples(inputs if other is None else other)
        Q, unit = self.num_outputs, Unit(self.anchor.dtype)
        entry = _KERNELS[work](Q) * self.anchor.element_size()
        result = 0 if out else count * columns * entry
        whole = work == "kernel_full"
        require(result, self.budget(), f"The result of {work}", _instead(whole))
        left, right = self.side(inputs, unit), None if other is None else self.side(other, unit)
        budget = self.budget()
        found = plan_pairs(left, right, entry, budget, work, _instead(whole), whole=whole, beside=result)
        pairs_made = count * columns * (0.5 if other is None else 1.0)
        operations = self.footprint(inputs, Q).operations * found.made(count, None if other is None else columns)
        operations += pairs_made * self.pair_operations(inputs, Q, Q, trace=work != "kernel_full")
        return Plan(work, count, found.block, found.held, result + found.bytes, result, operations, self.budget())

    def _wide(self, precision: Whitener) -> torch.dtype:
        return torch.promote_types(self.anchor.dtype, precision.dtype)

    def _layer_rows(self) -> Work:
        """The rows of the largest layer, in float64."""
        sizes = self._layer_sizes
        largest = self.layers[sizes.index(max(sizes))]
        return Work("The rows of a layer", lambda factors: factors.columns(largest).flatten(0, 1).double())

    def structured(self, inputs: Inputs, precision: Whitener) -> bool:
        """Whether Σ is one number on each range of weights, so that no rows need to be formed."""
        return all(precision.scale(part) is not None for part in self.parts(inputs))

    @bounded
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
        check_precision(precision)
        right_map = other or self
        inputs = self.check(inputs)
        other_inputs = None if other_inputs is None else right_map.check(other_inputs)
        symmetric = other_inputs is None and right_map is self
        dtype = self._wide(precision)
        left = self.side(inputs, precision)
        right = None if symmetric else right_map.side(inputs if other_inputs is None else other_inputs, precision)
        if out is not None and (differentiable(inputs) or (other_inputs is not None and differentiable(other_inputs))):
            raise InputError("A kernel in a file has no gradient: detach the inputs, or leave out= away.")
        axis = 2 if len(shape) == 4 else 1
        with KernelBuffer(shape, dtype, self.anchor.device, out, self.budget(), f"The {what}") as result:
            entry = dtype.itemsize * (shape[1] * shape[3] if len(shape) == 4 else shape[2] if len(shape) == 3 else 1)
            whole, beside = len(shape) == 4, result.bytes
            plan = plan_pairs(
                left, right, entry, self.budget(), f"The {what}", _instead(whole), whole=whole, beside=beside
            )
            for rows, columns, a, b in pairs(left, right, plan, what):
                block = product(a, b)
                mirrored = symmetric and rows != columns
                result.write(rows, columns, block, axis, mirrored)
                del a, b, block
        return result.tensor()


def _joined(chunks: Iterable[Tensor]) -> Tensor:
    """The results of all chunks, one after the other; a single one as it is."""
    parts = list(chunks)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _marginal(precision: Whitener) -> Work:
    return Work("J Σ Jᵀ", precision.marginal, (type(precision), precision.dtype))


def _white(precision: Whitener, structured: bool) -> Work:
    key = type(precision), precision.dtype, structured
    return Work("J Σ^½", lambda factors: precision.whitened(factors).compact(), key)


_ROWS = Work("J", Factors.rows)
_WIDE_ROWS = Work("JᵀΛJ", lambda factors: factors.rows().flatten(0, 1).double())
_MOMENTS = Work("Σ g, Σ g²", Factors.moments)
_SQUARES = Work("diag JᵀΛJ", Factors.squares)
_KRONECKER = Work("Kronecker factors", kronecker_sums, apart=True)

# The numbers of a pair of examples in each kind of kernel, for Q outputs.
_KERNELS: dict[str, Callable[[int], int]] = {
    "kernel_full": lambda Q: Q * Q,
    "kernel_trace": lambda Q: 1,
    "kernel_diagonal": lambda Q: Q,
}


def _instead(whole: bool) -> str:
    smaller = "the trace or diagonal kernel, " if whole else ""
    return (
        f"Take fewer inputs at a time, {smaller}or out=FILE, which holds the result on disk; or freeze layers that "
        "need no uncertainty (requires_grad_(False))."
    )
