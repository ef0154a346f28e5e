"""Products with the features φ_w(x)ᵀ ∈ R^{Q×P} of Eq. (5); for Laplace-GGN φᵀ = J, the Jacobian of the network.

A feature map says what SᵀJ is for a few examples, by blocks (`factors`). Every product is computed here from chunks of
it that are as large as the memory budget allows (`budget/chunked.py`), and kernels in `kernels.py`.

    J     rows of all examples, (N·Q) × P          Σ = precision⁻¹     a covariance of the weights

Sums over examples (vjp, the GGN and its parts) are over the examples of all processes of the `team`; everything else
concerns only the inputs that are passed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from typing import TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.budget.chunked import joined
from dnn2gp.features.budget.plan import Plan, Work
from dnn2gp.features.checks import Cotangents, check_cotangents, check_precision, check_vectors
from dnn2gp.features.factors import Factors
from dnn2gp.features.kernels import KERNELS, Kernels
from dnn2gp.features.kronecker_factors import KroneckerFactors, kronecker_factors, kronecker_sums
from dnn2gp.features.weight_gram import WeightGram
from dnn2gp.features.whitener import Unit, Whitener
from dnn2gp.network.inputs import Inputs, check_inputs, in_parts, num_examples
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import even_chunks
from dnn2gp.support.processes import ALONE, Team

Map = TypeVar("Map", bound="FeatureMap")


class FeatureMap(Kernels):
    """φ at a fixed anchor w. Q is the number of feature columns of an example (K for the Jacobian)."""

    team: Team = ALONE
    """The processes that share the examples."""

    def of_team(self: Map, team: Team) -> Map:
        """The same features, for examples that these processes share."""
        found = copy(self)
        found.team = team
        return found

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

    def jacobian(self, inputs: Inputs) -> Float[Tensor, "N Q P"]:
        """φ_w(x)ᵀ of each example."""
        held = 2 * num_examples(inputs) * self.num_outputs * self.anchor.nbytes
        return joined(self._used(inputs, _ROWS, fixed=held), num_examples(inputs))

    def pull_each(self, inputs: Inputs, cotangents: Float[Tensor, "N Q"]) -> Float[Tensor, "N P"]:
        """J(xᵢ)ᵀ uᵢ of each example separately."""
        held = 2 * num_examples(inputs) * self.anchor.nbytes
        rows = self._used(inputs, _ROWS, cotangents.unsqueeze(-1), fixed=held)
        return joined(rows, num_examples(inputs)).squeeze(1)

    def jvp(self, inputs: Inputs, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "N Q S"]:
        """J V."""
        check_vectors(vectors, self.num_weights)
        work = Work("J v", lambda factors: factors.push(vectors), (vectors.shape[1],))
        held = num_examples(inputs) * self.num_outputs * vectors.shape[1] * self.anchor.element_size()
        return joined(self._used(inputs, work, fixed=2 * held), num_examples(inputs))

    @final
    def vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N Q S"]) -> Float[Tensor, "P S"]:
        """Jᵀ U = Σᵢ φ_w(xᵢ) Uᵢ."""
        return self.team.sum(self.own_vjp(inputs, cotangents))

    def own_vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N Q S"]) -> Float[Tensor, "P S"]:
        """The part of Jᵀ U that comes from the examples of this process."""
        check_cotangents(cotangents, num_examples(inputs), self.num_outputs)
        count = cotangents.shape[2]
        total = self.anchor.new_zeros(self.num_weights, count)
        work = Work("Jᵀ u", lambda factors: factors.pull(factors.ones(count)), (count,))
        for part, factors in self._factors(inputs, work, fixed=total.nbytes):
            total += factors.pull(cotangents[part])
            del factors  # freed before the next ones are made
        return total

    def ggn(self, inputs: Inputs, root: Cotangents) -> Float[Tensor, "P P"]:
        """Jᵀ Λ J = Σᵢ φ_w(xᵢ) Λᵢ φ_w(xᵢ)ᵀ with Λᵢ = Sᵢ Sᵢᵀ, in float64 regardless of the dtype of the rows."""
        inputs = self._checked(inputs, root)
        total = WeightGram(self.num_weights, self.anchor.device)
        for _, factors in self._factors(inputs, _WIDE_ROWS, root, fixed=total.bytes):
            total.add(factors)
            del factors
        return self.team.sum(total.result())

    def ggn_diagonal(self, inputs: Inputs, root: Cotangents) -> Float[Tensor, " P"]:
        """diag(Jᵀ Λ J), summed over chunks in float64."""
        inputs = self._checked(inputs, root)
        total = torch.zeros(self.num_weights, dtype=torch.float64, device=self.anchor.device)
        for squares in self._used(inputs, _SQUARES, root, fixed=total.nbytes):
            total += squares
        return self.team.sum(total)

    def squared_gradients(self, inputs: Inputs, cotangents: Float[Tensor, "N Q"]) -> Float[Tensor, " P"]:
        """Σᵢ (φ_w(xᵢ) uᵢ)², elementwise; for u = r, the sum of the squared gradients of the examples (VOGN)."""
        return self.ggn_diagonal(inputs, cotangents.unsqueeze(-1))

    def gradient_moments(
        self, inputs: Inputs, cotangents: Callable[[Float[Tensor, "n Q"], slice], Float[Tensor, "n Q"]]
    ) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
        """Σᵢ gᵢ and Σᵢ gᵢ², elementwise, of gᵢ = φ_w(xᵢ) uᵢ: what a step of VOGN needs, from one pass.

        u is a function of the outputs of some of the examples and of which ones they are. Summed in float64.
        """
        sums, squares = torch.zeros(2, self.num_weights, dtype=torch.float64, device=self.anchor.device)
        size = self.chunk(inputs, 1, _MOMENTS, fixed=2 * sums.nbytes)
        for part, some in in_parts(inputs, list(even_chunks(num_examples(inputs), size))):

            def columns(outputs: Float[Tensor, "m Q"], part: slice = part) -> Float[Tensor, "m Q 1"]:
                own = cotangents(outputs[: part.stop - part.start], part)  # a single example may be computed twice
                return own.expand(len(outputs), -1).unsqueeze(-1)

            own, own_squares = self.factors(some, columns).moments()
            del some
            sums += own
            squares += own_squares
        sums, squares = self.team.sum(torch.stack([sums, squares])) if self.team.size > 1 else (sums, squares)
        return sums, squares

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
        return [self.team.sum(total) for total in totals]

    def kronecker(self, inputs: Inputs, root: Cotangents) -> list[KroneckerFactors]:
        """The Kronecker factors of Jᵀ Λ J for each layer (KFAC)."""
        inputs = self._checked(inputs, root)
        held = 8 * self.kronecker_numbers(inputs)
        return kronecker_factors(self._used(inputs, _KRONECKER, root, fixed=held), self.team)

    def kronecker_numbers(self, inputs: Inputs) -> int:
        """The number of entries of the Kronecker factors of all layers."""
        return sum((part.stop - part.start) ** 2 for part in self.parts(inputs))

    def covariance(self, inputs: Inputs, precision: Whitener) -> Float[Tensor, "N Q Q"]:
        """J(x) Σ J(x)ᵀ of each example."""
        check_precision(precision)
        inputs = self.check(inputs)
        work = _marginal(precision)
        each = self.num_outputs**2 * torch.promote_types(self.anchor.dtype, precision.dtype).itemsize
        found = self._used(inputs, work, fixed=2 * num_examples(inputs) * each, extra=3 * each)
        return joined(found, num_examples(inputs))

    def plan(self, work: str, inputs: Inputs, other: Inputs | None = None, *, out: bool = False) -> Plan:
        """What the product of this name needs, before it is computed, with one prior precision per layer.

        `out`: the result goes to a file and does not count. What cannot fit into the budget is an error here too.
        """
        inputs, other = self.check(inputs), None if other is None else self.check(other)
        if work in KERNELS:
            return self.plan_kernel(KERNELS[work], inputs, other, out=out)
        Q, P, count = self.num_outputs, self.num_weights, num_examples(inputs)
        size, each = self.anchor.element_size(), 2.0 * Q * P
        marginal = _marginal(Unit(self.anchor.dtype))
        blocks = sum(8 * own**2 for own in self._layer_sizes)
        # What is done, the bytes of the result, how many times that is held, and the operations of an example.
        known: dict[str, tuple[Work, int, int, float]] = {
            "covariance": (marginal, count * Q * Q * size, 2, Q * each),
            "ggn": (_WIDE_ROWS, 8 * P**2, 3, P * each),
            "ggn_blocks": (self._layer_rows(), blocks, 1, P * each),
            "ggn_diagonal": (_SQUARES, 8 * P, 1, each),
            "kronecker": (_KRONECKER, 8 * self.kronecker_numbers(inputs), 1, each),
            "jacobian": (_ROWS, count * Q * self.anchor.nbytes, 2, each),
        }
        if work not in known:
            raise InputError(f"work: expected one of {[*KERNELS, *known]}; got {work!r}.")
        done, result, times, operations = known[work]
        held = times * result
        chunk = self.chunk(inputs, work=done, fixed=held)
        total = self.need(inputs, Q, done)(max(chunk, self.fewest)) + held
        operations = count * (self.operations(inputs, Q) + operations)
        return Plan(work, count, chunk, chunk, total, result, operations, self.budget())

    def _layer_rows(self) -> Work:
        """The rows of the largest layer, in float64."""
        sizes = self._layer_sizes
        largest = self.layers[sizes.index(max(sizes))]
        return Work("The rows of a layer", lambda factors: factors.columns(largest).flatten(0, 1).double())


def _marginal(precision: Whitener) -> Work:
    return Work("J Σ Jᵀ", precision.marginal, (type(precision), precision.dtype))


_ROWS = Work("J", Factors.rows)
_WIDE_ROWS = Work("JᵀΛJ", lambda factors: factors.rows().flatten(0, 1).double())
_MOMENTS = Work("Σ g, Σ g²", Factors.moments)
_SQUARES = Work("diag JᵀΛJ", Factors.squares)
_KRONECKER = Work("Kronecker factors", kronecker_sums, apart=True)
