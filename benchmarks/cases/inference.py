"""The exact GP in function space: making it, predicting with it, and the parts of both. Ours alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import torch
from torch import Tensor

import dnn2gp
from benchmarks import networks
from benchmarks.case import OURS, Case, Implementation, Run, Settings
from benchmarks.cases.common import lenet_problem
from benchmarks.problem import Problem
from dnn2gp.features import FactoredJacobian, Factors

_PRIOR_PRECISION = 1.0
_CHUNK = 128


def exact_gp(settings: Settings) -> list[Case]:
    """500 training images of 10 classes; 1,000 test images."""
    work = _Work(lenet_problem(settings, 500), settings.size(1000))
    sizes = f"exact GP of {work.problem.num_examples} images, K = 10, predicting {work.num_test}, LeNet-5, float32"
    parts: dict[str, Callable[[_Work], Run]] = {
        "part: capture of the training images": lambda w: w.captured,
        "part: kernel of the training images": lambda w: partial(w.gram, torch.float64),
        "part: Cholesky": lambda w: partial(w.cholesky, w.gram(torch.float64)),
        "part: capture of the test images": lambda w: partial(w.test_factors, torch.float64),
        "part: cross kernel": lambda w: partial(w.cross, w.test_factors(torch.float64), torch.float64),
        "part: solve": lambda w: partial(w.solve, *w.solvable()),
        "kernel of the training images in float32": lambda w: partial(w.gram, torch.float32),
        "cross kernel in float32": lambda w: partial(w.cross, w.test_factors(torch.float32), torch.float32),
    }
    rows = [Implementation(OURS, {"": lambda: work.whole}, None)]
    rows += [Implementation(name, {"": partial(prepare, work)}, None) for name, prepare in parts.items()]
    return [Case("exact-gp/whole", sizes, 0.0, tuple(rows))]


class _Work:
    """A GP and its test images, made when they are first needed."""

    def __init__(self, problem: Problem, num_test: int) -> None:
        """LeNet-5 with random weights and images."""
        self.problem, self.num_test = problem, num_test

    @cached_property
    def test(self) -> Tensor:
        """Test images."""
        return networks.random_inputs(self.num_test, 1, 28, 28).float()

    @cached_property
    def gp(self) -> dnn2gp.GaussianProcess:
        """The GP by function space, with the engine that is measured."""
        return dnn2gp.convert(
            self.problem.module,
            (self.problem.inputs, self.problem.labels),
            dnn2gp.CategoricalLikelihood(),
            _PRIOR_PRECISION,
            inference=dnn2gp.FunctionSpace(),
            features=self.problem.engine_class,
        )

    @cached_property
    def kept(self) -> FactoredJacobian:
        """SᵀJ of the training images, by factors that are kept."""
        return self.captured(torch.float64)

    @cached_property
    def narrow(self) -> FactoredJacobian:
        """The same with products in float32."""
        return self.captured(torch.float32)

    def whole(self) -> Tensor:
        """Make the GP, then predict: what a user waits for."""
        self.__dict__.pop("gp", None)
        return self.gp.predict(self.test).variance

    def captured(self, dtype: torch.dtype = torch.float64) -> FactoredJacobian:
        """SᵀJ of the training images, anew."""
        expansion = self.gp.model.expansion
        precision = self.gp.prior.precision.double() if dtype == torch.float64 else self.gp.prior.precision
        factored = FactoredJacobian(expansion.features, expansion.inputs, expansion.root, precision, dtype)
        assert factored.kept()
        return factored

    def gram(self, dtype: torch.dtype) -> Tensor:
        """SᵀKS."""
        return self._in(dtype).gram()

    def cholesky(self, gram: Tensor) -> Tensor:
        """L of I + SᵀKS."""
        return torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=gram.dtype))

    def test_factors(self, dtype: torch.dtype) -> list[Factors]:
        """J of the test images."""
        precision = self._in(dtype).precision
        return [self.gp.features.white_factors(part, precision) for part in self.test.split(_CHUNK)]

    def cross(self, test: list[Factors], dtype: torch.dtype) -> Tensor:
        """J(x) V Jᵀ S."""
        kept = self._in(dtype)
        return torch.cat([kept.cross(part) for part in test])

    def solvable(self) -> tuple[Tensor, Tensor]:
        """L and the cross kernel."""
        factor = self.cholesky(self.gram(torch.float64))
        return factor, self.cross(self.test_factors(torch.float64), torch.float64).flatten(0, 1)

    def solve(self, factor: Tensor, cross: Tensor) -> Tensor:
        """L⁻¹ of the cross kernel, and the variances that it explains."""
        reduction = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        return reduction.square().sum(0)

    def _in(self, dtype: torch.dtype) -> FactoredJacobian:
        """The kept factors with products in a dtype."""
        return self.kept if dtype == torch.float64 else self.narrow
