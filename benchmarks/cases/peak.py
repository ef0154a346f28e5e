"""The share of the machine's matrix-product peak that ours reaches, by operations counted on paper."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks import ours
from benchmarks.case import Case, Implementation, Run, Settings
from benchmarks.cases.common import lenet_problem
from benchmarks.operations import full_kernel, ggn_diagonal, lenet5_layers, trace_kernel
from benchmarks.problem import Problem

PRODUCT = "torch.mm"
_SIDE = 2000

_Quantity = tuple[str, Callable[[Problem], object], Callable[..., float]]
_QUANTITIES: tuple[_Quantity, ...] = (
    ("full-kernel", ours.full_kernel, full_kernel),
    ("trace-kernel", ours.trace_kernel, trace_kernel),
    ("ggn-diagonal", ours.ggn_diagonal, ggn_diagonal),
)


def peak(settings: Settings) -> list[Case]:
    """LeNet-5 on 1,000 examples, interleaved with a 2000 × 2000 matrix product in the same dtype and threads."""
    problem = lenet_problem(settings, 1000)
    return [
        Case(
            f"peak/{name}",
            f"share of peak: {name.replace('-', ' ')}, LeNet-5, N = {problem.num_examples}, float32",
            problem.tolerance,
            (
                ours.implementation(
                    problem, partial(compute, problem), operations=count(lenet5_layers(10), problem.num_examples, 10)
                ),
                Implementation(PRODUCT, {"": partial(_prepare_product, problem)}, None, operations=2.0 * _SIDE**3),
            ),
        )
        for name, compute, count in _QUANTITIES
    ]


def _prepare_product(problem: Problem) -> Run:
    left = torch.randn(_SIDE, _SIDE, dtype=problem.dtype)
    right = torch.randn(_SIDE, _SIDE, dtype=problem.dtype)
    return lambda: left @ right
