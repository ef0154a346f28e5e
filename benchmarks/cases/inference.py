"""The exact GP in function space: making it, and predicting with it. Ours alone."""

from __future__ import annotations

from functools import cache, partial

import dnn2gp
from benchmarks import networks
from benchmarks.case import OURS, Case, Implementation, Run, Settings
from benchmarks.cases.common import lenet_problem
from benchmarks.problem import Problem

_PRIOR_PRECISION = 1.0


def exact_gp(settings: Settings) -> list[Case]:
    """500 training images of 10 classes; 1,000 test images. Total times of the two calls of the public interface."""
    problem = lenet_problem(settings, 500)
    num_test = settings.size(1000)
    fitted = cache(partial(_convert, problem))
    sizes = f"exact GP of {problem.num_examples} images, K = 10, LeNet-5, float32"
    return [
        Case("exact-gp/convert", f"{sizes}: convert", 0.0, (Implementation(OURS, {"": partial(_making, problem)}),)),
        Case(
            "exact-gp/predict",
            f"{sizes}: predict {num_test}",
            0.0,
            (Implementation(OURS, {"": partial(_predicting, fitted, num_test)}),),
        ),
    ]


def _convert(problem: Problem) -> dnn2gp.GaussianProcess:
    """The GP by function space, with the engine that is measured."""
    return dnn2gp.convert(
        problem.module,
        (problem.inputs, problem.labels),
        dnn2gp.CategoricalLikelihood(),
        _PRIOR_PRECISION,
        inference=dnn2gp.FunctionSpace,
        features=problem.engine_class,
    )


def _making(problem: Problem) -> Run:
    _ = problem.module, problem.inputs, problem.labels
    return partial(_convert, problem)


def _predicting(fitted: partial[dnn2gp.GaussianProcess], num_test: int) -> Run:
    gp, inputs = fitted(), networks.random_inputs(num_test, 1, 28, 28).float()
    return lambda: gp.predict(inputs).variance
