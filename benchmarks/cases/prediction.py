"""Predictive covariances K × K of a diagonal posterior."""

from __future__ import annotations

from functools import cache, partial

from benchmarks import ours
from benchmarks.case import OURS, Case, Implementation, Run, Settings
from benchmarks.cases.common import VMAP, lenet_problem
from benchmarks.peers import vmap_jacrev
from benchmarks.problem import Problem
from dnn2gp.weights.structures import DiagonalPrecision

LAPLACE_BACKPACK, LAPLACE_DEFAULT = "laplace-torch, BackPACK backend", "laplace-torch, default backend"
LAPLACE_BATCHES = "laplace-torch, default backend, batches of {}"
# Examples that the posterior is fitted on, untimed: the time of a prediction does not depend on them.
_FITTED = 32


def variances(settings: Settings) -> list[Case]:
    """1,000 test images of LeNet-5; the posterior is the same for all."""
    problem = lenet_problem(settings, 1000)
    fitted = min(_FITTED, problem.num_examples)
    posterior = cache(lambda: ours.diagonal_posterior(problem, fitted))
    part = min(32, problem.num_examples)
    implementations = (
        Implementation(OURS, {"": partial(_prepare_ours, problem, posterior)}),
        Implementation(VMAP, {f"chunks of {n}": partial(_prepare_vmap, problem, posterior, n) for n in (16, 128)}),
        Implementation(
            LAPLACE_BACKPACK,
            {f"batch {n}": partial(_prepare_laplace, problem, fitted, None, "BackPACK", n) for n in (32, 128)},
        ),
        Implementation(
            LAPLACE_DEFAULT,
            {f"batch {n}": partial(_prepare_laplace, problem, fitted, part, "default", n) for n in (2, 4, 8)},
            expected=lambda covariance: covariance[:part],
            scale=problem.num_examples / part,
            note=f"CurvlinopsGGN at its best batch, measured on {part} images; linear in N",
        ),
        *(_batches_of(problem, fitted, batch) for batch in (32, 128)),
    )
    title = f"predictive covariances, diagonal posterior, LeNet-5, N = {problem.num_examples}, float32"
    return [Case("variance/diagonal", title, problem.tolerance, implementations)]


def _batches_of(problem: Problem, fitted: int, batch: int) -> Implementation:
    """laplace-torch as it is, with a usual batch."""
    part = min(batch, problem.num_examples)
    return Implementation(
        LAPLACE_BATCHES.format(batch),
        {"": partial(_prepare_laplace, problem, fitted, part, "default", part)},
        expected=lambda covariance: covariance[:part],
        scale=problem.num_examples / part,
        note="CurvlinopsGGN; its cost grows with the square of the batch",
    )


def _prepare_ours(problem: Problem, posterior: partial[DiagonalPrecision]) -> Run:
    problem.warm()
    precision = posterior()
    return lambda: ours.covariance(problem, precision)


def _prepare_vmap(problem: Problem, posterior: partial[DiagonalPrecision], chunk: int) -> Run:
    variance = posterior().values.reciprocal()
    module, inputs = problem.module, problem.inputs
    return lambda: vmap_jacrev.covariance(module, inputs, variance, chunk)


def _prepare_laplace(problem: Problem, fitted: int, part: int | None, backend: str, batch: int) -> Run:
    from benchmarks.peers import laplace

    training = problem.inputs[:fitted], problem.labels[:fitted]
    return laplace.covariance(problem.module, training, problem.inputs[:part], batch, backend)
