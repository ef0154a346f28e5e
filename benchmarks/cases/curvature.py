"""The GGN diagonal of a softmax likelihood, exact."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks import ours
from benchmarks.case import Case, Implementation, Run, Settings, single
from benchmarks.cases.common import LOOP, RELEASED_PART, ggn_case, lenet_problem, released
from benchmarks.peers import loop
from benchmarks.problem import Problem

UNITS, ROWS = "curvlinops, unit vectors", "curvlinops, Jacobian operators"
LAPLACE = "laplace-torch, default backend"
_COLUMNS = 4
_BATCHES = (2, 4, 8)


def ggn_diagonals(settings: Settings) -> list[Case]:
    """LeNet-5 on 1,000 and 10,000 examples."""
    result = []
    for nominal in (1000, 10_000):
        problem = lenet_problem(settings, nominal)
        first = partial(_first, problem)
        peers = (
            _loop(problem),
            released(problem, loop.released_ggn_diagonal, first),
            _unit_vectors(problem),
            _jacobian_operators(problem),
            _laplace(problem),
        )
        title = f"GGN diagonal, softmax, LeNet-5, N = {problem.num_examples}, float32"
        result.append(ggn_case(f"ggn-diagonal/lenet5-{nominal}", title, problem, *peers))
    return result


def _first(problem: Problem, _: torch.Tensor) -> torch.Tensor:
    """Ours on the examples that the released code's loop is measured on."""
    return ours.ggn_diagonal(problem, RELEASED_PART)


def _loop(problem: Problem) -> Implementation:
    """The loop over examples on up to 100 examples; its cost is linear in N."""
    part = min(100, problem.num_examples)
    return single(
        LOOP,
        lambda: loop.ggn_diagonal(problem.module, problem.inputs[:part]),
        expected=lambda _: ours.ggn_diagonal(problem, part),
        scale=problem.num_examples / part,
        note=f"measured on {part} examples; linear in N",
    )


def _unit_vectors(problem: Problem) -> Implementation:
    """A few columns of its GGN operator; the exact diagonal takes one for every weight."""
    num_weights = 44_426  # of LeNet-5 with 10 outputs, known before it is built
    entries = torch.linspace(0, num_weights - 1, _COLUMNS).long()

    def prepare() -> Run:
        from benchmarks.peers import curvlinops

        return curvlinops.ggn_diagonal_entries(problem.module, problem.inputs, problem.labels, entries, 512)

    return Implementation(
        UNITS,
        {"": prepare},
        expected=lambda diagonal: diagonal[entries],
        scale=num_weights / _COLUMNS,
        note=f"GGNLinearOperator times {_COLUMNS} of P unit vectors; linear in P",
    )


def _jacobian_operators(problem: Problem) -> Implementation:
    """Its transposed Jacobian of each example, on up to 100 examples; linear in N."""
    part = min(100, problem.num_examples)

    def prepare() -> Run:
        from benchmarks.peers import curvlinops

        return curvlinops.ggn_diagonal(problem.module, problem.inputs[:part], problem.labels[:part])

    return Implementation(
        ROWS,
        {"": prepare},
        expected=lambda _: ours.ggn_diagonal(problem, part),
        scale=problem.num_examples / part,
        note=f"TransposedJacobianLinearOperator of each example, measured on {part}; linear in N",
    )


def _laplace(problem: Problem) -> Implementation:
    """laplace-torch's CurvlinopsGGN.diag at its best batch size."""
    part = min(64, problem.num_examples)

    def prepare(batch: int) -> Run:
        from benchmarks.peers import laplace

        return laplace.ggn_diagonal(problem.module, problem.inputs[:part], problem.labels[:part], batch)

    return Implementation(
        LAPLACE,
        {f"batch {batch}": partial(prepare, batch) for batch in _BATCHES},
        expected=lambda _: ours.ggn_diagonal(problem, part),
        scale=problem.num_examples / part,
        note=f"CurvlinopsGGN.diag, measured on {part} examples; linear in N",
    )
