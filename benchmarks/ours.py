"""The quantities by dnn2gp. Network and engine are made beforehand; each call starts from the inputs."""

from __future__ import annotations

from torch import Tensor

from benchmarks.case import OURS, Implementation, Run
from benchmarks.problem import Problem
from dnn2gp.likelihoods import CategoricalLikelihood
from dnn2gp.weights.structures import DiagonalPrecision


def implementation(problem: Problem, compute: Run, name: str = OURS, operations: float | None = None) -> Implementation:
    """Ours in a case: make the engine untimed, then time `compute`."""

    def prepare() -> Run:
        problem.warm()
        return compute

    return Implementation(name, {"": prepare}, operations=operations)


def full_kernel(problem: Problem) -> Tensor:
    """J Jᵀ, N × K × N × K."""
    return problem.features.kernel_full(problem.inputs, problem.prior)


def trace_kernel(problem: Problem) -> Tensor:
    """Σ_k [J Jᵀ]_kk, N × N."""
    return problem.features.kernel_trace(problem.inputs, problem.prior)


def ggn_diagonal(problem: Problem, num_examples: int | None = None) -> Tensor:
    """diag(Jᵀ Λ J) of a softmax likelihood on the first examples (default: all), outputs and Λ included."""
    inputs = problem.inputs[:num_examples]
    return problem.features.ggn_diagonal(inputs, CategoricalLikelihood().noise_precision_root)


def kronecker(problem: Problem) -> object:
    """The Kronecker factors of Jᵀ Λ J, layer by layer, outputs and Λ included."""
    inputs = problem.inputs
    return problem.features.kronecker(inputs, CategoricalLikelihood().noise_precision_root)


def diagonal_posterior(problem: Problem, num_examples: int) -> DiagonalPrecision:
    """diag(I + Jᵀ Λ J) on the first examples."""
    return DiagonalPrecision((ggn_diagonal(problem, num_examples) + 1).to(problem.dtype))


def covariance(problem: Problem, posterior: DiagonalPrecision) -> Tensor:
    """J Σ Jᵀ of each example, N × K × K."""
    return problem.features.covariance(problem.inputs, posterior)
