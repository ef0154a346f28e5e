"""Products J Jᵀ v of the kernel with vectors, without the kernel."""

from __future__ import annotations

from functools import cache, partial

import torch

from benchmarks.case import OURS, Case, Implementation, Run, Settings
from benchmarks.cases.common import lenet_problem
from benchmarks.peers import autograd
from benchmarks.problem import Problem
from dnn2gp.features import FactoredJacobian

AUTOGRAD, BUILD = "autograd's vjp and jvp", "dnn2gp, building the factors"


def kernel_vector(settings: Settings) -> list[Case]:
    """LeNet-5: one vector, and a block of 32. The factored Jacobian is built once, which is a row of its own."""
    problem = lenet_problem(settings, 1000)
    return [_case(problem, 1), _case(problem, 32)]


def _case(problem: Problem, num_vectors: int) -> Case:
    vectors = cache(partial(_vectors, problem, num_vectors))
    at_once = (1,) if num_vectors == 1 else (1, 8)
    implementations = (
        Implementation(OURS, {"": partial(_prepare_product, problem, vectors)}),
        Implementation(AUTOGRAD, {f"{n} at once": partial(_prepare_autograd, problem, vectors, n) for n in at_once}),
        Implementation(BUILD, {"": partial(_prepare_build, problem)}, None, note="once; not part of the products"),
    )
    title = f"kernel-vector product, {num_vectors} at a time, LeNet-5, N = {problem.num_examples}, float32"
    return Case(f"kernel-vector/{num_vectors}", title, problem.tolerance, implementations)


def _vectors(problem: Problem, num_vectors: int) -> torch.Tensor:
    """Random columns, (N·K) × S."""
    generator = torch.Generator().manual_seed(1)
    size = problem.num_examples * problem.num_outputs
    return torch.randn(size, num_vectors, generator=generator, dtype=problem.dtype)


def _prepare_product(problem: Problem, vectors: partial[torch.Tensor]) -> Run:
    jacobian, columns = _factored(problem), vectors()
    return lambda: jacobian.push(jacobian.pull(columns))


def _prepare_autograd(problem: Problem, vectors: partial[torch.Tensor], at_once: int) -> Run:
    module, inputs, columns = problem.module, problem.inputs, vectors()
    return lambda: autograd.kernel_matvec(module, inputs, columns, at_once)


def _prepare_build(problem: Problem) -> Run:
    problem.warm()
    return partial(_factored, problem)


def _factored(problem: Problem) -> FactoredJacobian:
    """The Jacobian by its factors, all in memory."""
    jacobian = FactoredJacobian(problem.features, problem.inputs)
    assert jacobian.kept(), "the factors do not fit into the memory budget"
    return jacobian
