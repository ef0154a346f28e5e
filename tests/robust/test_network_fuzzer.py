"""A fuzzer of networks: random networks of a grammar, converted in random ways, against brute force.

Every network is refused with an error of this package, or its kernel, latent mean and covariance, predictions and
evidence are those of explicit matrices, made by one plain backward pass for each example and output in float64.
Nothing else is raised, and the network stays as it was. 60 networks in the test suite, or as many as
DNN2GP_FUZZ_NETWORKS says:

    DNN2GP_FUZZ_NETWORKS=2000 python -m pytest -s tests/robust/test_network_fuzzer.py

The first networks contain every kind of layer; the others are drawn by hypothesis, which simplifies one that fails.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, note, settings
from likelihoods.cases import CASES, Case
from torch import Tensor, nn

import dnn2gp
from dnn2gp import FunctionSpace, GaussianProcess, WeightSpace, convert
from dnn2gp.features import JacobianFeatures, LayerwiseFeatures
from dnn2gp.inference import GaussNewtonStep
from dnn2gp.support import errors
from dnn2gp.support.errors import EXPECTED
from dnn2gp.weights import Expansion

from reference import brute_force, laplace
from robust.random_layers import CONVOLUTIONS, DENSE, ELEMENTWISE, LAYERS, MUST_REFUSE
from robust.random_networks import REFUSED_STEMS, STEMS, WRAPPERS, Spec, build, cover, inputs_of, specs
from robust.support import untouched

COUNT = int(os.environ.get("DNN2GP_FUZZ_NETWORKS", "60"))
TYPED = tuple(error for error in EXPECTED if error is not OSError)
TESTS = 3
REFUSED = "with a refused kind"


# One network: what is asked, and what is expected ---------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A network with data, and how it is converted."""

    spec: Spec
    module: nn.Module
    inputs: object
    targets: Tensor
    test_inputs: object
    case: Case
    delta: dict[str, float]
    """δ of each layer, by its name."""

    @staticmethod
    def of(spec: Spec) -> Question:
        """Everything from the seed of the spec."""
        with torch.random.fork_rng():
            torch.manual_seed(spec.seed)
            module = build(spec)
            inputs, test_inputs = inputs_of(spec, spec.examples), inputs_of(spec, TESTS)
        K = torch.Size(spec.output_shape).numel()
        fitting = [case for case in CASES if _fits(case, spec, K)]
        case = fitting[spec.likelihood % len(fitting)]
        targets = case.targets(torch.zeros(spec.examples, K).double(), torch.Generator().manual_seed(spec.seed))
        names = laplace.trainable_names(_trained(module, spec))
        layers = dict.fromkeys(name.rpartition(".")[0] for name in names)
        values = {
            name: 0.5 + position if spec.delta == "per layer" else float(spec.delta)
            for position, name in enumerate(layers)
        }
        return Question(spec, module, inputs, targets, test_inputs, case, values)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.spec.double else torch.float32

    def convert(self) -> GaussianProcess:
        """The library's answer, with the settings of the spec."""
        spec = self.spec
        targets = self.targets
        if targets.is_floating_point():
            targets = targets.to(self.dtype).reshape(spec.examples, *spec.output_shape)
        K = torch.Size(spec.output_shape).numel()
        inference = {"": None, "weight": WeightSpace(), "function": FunctionSpace()}[spec.inference]
        return convert(
            self.module,
            (self.inputs, targets),
            self.case.build(spec.examples, K),
            self.delta if spec.delta == "per layer" else float(spec.delta),
            subset=spec.subset or None,
            structure=getattr(dnn2gp, spec.structure)(),
            inference=inference,
            features=LayerwiseFeatures if spec.engine == "layerwise" else JacobianFeatures,
            expansion=getattr(Expansion, spec.expansion),
            mean=GaussNewtonStep(),
        )

    def problem(self) -> laplace.Problem:
        """The matrices of brute force."""
        module = _trained(copy.deepcopy(self.module).double(), self.spec)
        weights = dict(module.named_parameters())
        delta = torch.cat(
            [
                torch.full((weights[name].numel(),), self.delta[name.rpartition(".")[0]], dtype=torch.float64)
                for name in laplace.trainable_names(module)
            ]
        )
        K = torch.Size(self.spec.output_shape).numel()
        return laplace.problem(
            module,
            doubled(self.inputs),
            self.targets.to(self.dtype).double() if self.targets.is_floating_point() else self.targets,
            doubled(self.test_inputs),
            self.case.log_prob(self.spec.examples, K),
            delta,
        )


def _fits(case: Case, spec: Spec, num_outputs: int) -> bool:
    """Whether a likelihood takes such outputs; noise per output has the shape of flat outputs here."""
    flat = len(spec.output_shape) == 1
    return num_outputs >= case.min_outputs and (flat or case.id in ("gaussian-scalar", "bernoulli", "poisson"))


def _trained(module: nn.Module, spec: Spec) -> nn.Module:
    """The network, or a copy in which only the last layer is trained."""
    if not spec.subset:
        return module
    module = copy.deepcopy(module)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith("readout."))
    return module


def doubled(inputs: object) -> object:
    if isinstance(inputs, Tensor):
        return inputs.double() if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {name: doubled(leaf) for name, leaf in inputs.items()}
    assert isinstance(inputs, tuple)
    return tuple(doubled(leaf) for leaf in inputs)


# The comparison -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """How far each answer may be off, given the relative error ε of the Jacobian and of the outputs.

    With G = √(λ_max(JᵀΛJ)/δ), the largest singular value of Λ^{½}J δ^{−½}, a change of J by ε changes
    Σ^{½}JᵀΛJΣ^{½} by at most 2 ε G, so JΣJᵀ by 2 ε (k + G k̃), with k and k̃ the largest prior and posterior variances.
    The step Σg changes by ε √k |g|/√δ (1 + G), with |g| the norms of the two parts of the gradient.
    """

    rounding: float
    given: laplace.Problem
    expected: laplace.Answers

    @property
    def gain(self) -> float:
        return float((torch.linalg.matrix_norm(self.given.ggn(), 2) / self.given.delta.min()).sqrt())

    @property
    def prior(self) -> float:
        return float((self.given.J_test.square() / self.given.delta).sum(-1).max())

    def covariance(self) -> float:
        return self.rounding * (self.prior * (2 + self.gain) + 1e-3)

    def mean(self) -> float:
        given = self.given
        parts = given.gradients.abs().sum(0).norm() + (given.delta * given.w).norm()
        step = float(self.prior**0.5 * parts / given.delta.min().sqrt()) * (1 + self.gain)
        return self.rounding * (1 + float(self.expected.latent_mean.abs().max()) + step)

    def slope(self) -> float:
        """The outputs' share of the error of h(f) and of its derivative."""
        return (
            1
            + float(self.expected.mean.abs().max())
            + float(self.expected.epistemic.abs().max()) / max(self.prior, 1e-9)
        )


def rounding(question: Question, problem: laplace.Problem) -> float:
    """ε: a thousand units in float64; in float32, that of plain backward passes in float32, with a margin."""
    if question.spec.double:
        return 1e-9
    module = _trained(question.module, question.spec)
    with torch.random.fork_rng():
        gaps = []
        for inputs, J, f in (
            (question.inputs, problem.J, problem.f),
            (question.test_inputs, problem.J_test, problem.f_test),
        ):
            gaps.append(float((brute_force.jacobian(module, inputs).double() - J).norm() / (J.norm() + 1e-6)))
            gaps.append(float((brute_force.outputs(module, inputs).double() - f).norm() / (f.norm() + 1e-6)))
    return 30 * max(*gaps, 1e-6)


def posterior_precision(question: Question, problem: laplace.Problem, gp: GaussianProcess) -> Tensor:
    """Σ̃⁻¹ by its formula.

    The formula for Kronecker holds for networks of linear layers and convolutions. For others, the library's own matrix
    is taken, so that everything but the factors is compared, and it must have a block for each layer.
    """
    spec = question.spec
    if spec.structure != "Kronecker":
        matrix = problem.ggn(empirical=spec.expansion == "empirical_fisher") + torch.diag(problem.delta)
        return laplace.structured(matrix, spec.structure, problem.layers)
    module = _trained(copy.deepcopy(question.module).double(), spec)
    plain = {**CONVOLUTIONS, **DENSE, **ELEMENTWISE}
    if spec.subset or all(kind in plain for kind, _ in spec.layers):
        own = laplace.kronecker(module, doubled(question.inputs), problem)
        if own is not None:
            return own
    given = gp.posterior.precision.dense()
    close("precision between layers", given, laplace.structured(given, "BlockDiagonal", problem.layers), 0.0)
    return given


def compare(question: Question, gp: GaussianProcess) -> None:
    """Assert that every answer is the expected one, within its tolerance."""
    spec, problem = question.spec, question.problem()
    precision = posterior_precision(question, problem, gp)
    expected = laplace.answers(problem, precision, question.case.mean, exact=spec.structure == "Dense")
    allowed = Tolerance(rounding(question, problem), problem, expected)
    predicted = gp.predict(question.test_inputs)
    close("kernel", gp.kernel.full(question.test_inputs, question.inputs), expected.kernel, allowed.covariance())
    close("latent covariance", predicted.latent_covariance, expected.latent_covariance, allowed.covariance())
    close("covariance", gp.covariance(question.test_inputs), expected.covariance, allowed.covariance())
    close("latent mean", predicted.latent_mean, expected.latent_mean, allowed.mean())
    close("mean", predicted.mean, expected.mean, allowed.mean() * allowed.slope())
    close("epistemic", predicted.epistemic, expected.epistemic, allowed.covariance() * allowed.slope() * 3)
    assert predicted.mean.shape == (TESTS, *spec.output_shape)
    evidence, gradient = gp.evidence(), float((problem.gradient.square() / problem.delta).sum())
    size = 1 + abs(expected.log_likelihood) + float(problem.r.norm() * problem.f.norm()) + gradient + len(problem.w)
    for name in ("log_likelihood", "prior_penalty", "complexity", "correction"):
        found, right = (torch.tensor(getattr(one, name), dtype=torch.float64) for one in (evidence, expected))
        close(name, found, right, allowed.rounding * size * (1 + allowed.gain))


def close(name: str, found: Tensor, expected: Tensor, atol: float) -> None:
    """Assert that numbers differ by no more than this, with the largest gap in the message."""
    gap = (found.double().reshape(expected.shape) - expected.double()).abs().max()
    if not gap <= atol:
        raise AssertionError(
            f"{name}: expected {expected.flatten()[:3].tolist()}, got {found.flatten()[:3].tolist()}; the largest gap "
            f"is {float(gap):.3g}, allowed {atol:.3g}, largest value {float(expected.abs().max()):.3g}"
        )


def outcome(question: Question) -> str:
    """What became of a network: "agreed", or the type of the error. Anything else is raised."""
    with warnings.catch_warnings(), untouched(question.module):
        for name in ("NotAMinimum", "Fallback", "TrainMode", "Probabilities"):
            warnings.simplefilter("ignore", getattr(errors, f"{name}Warning"))
        try:
            gp = question.convert()
            gp.predict(question.test_inputs)
        except TYPED as error:
            return type(error).__name__
        compare(question, gp)
    return "agreed"


# The test -------------------------------------------------------------------------------------------------------------


class Table:
    """How many networks became what, by kind of layer and by setting."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.rows: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, question: Question, became: str) -> None:
        spec = question.spec
        self.total[f"{REFUSED}: {became}" if spec.has_refused_kind else became] += 1
        settings = [
            spec.structure,
            spec.inference or "any space",
            spec.engine,
            spec.expansion,
            spec.subset or "all layers",
        ]
        for name in {*spec.kinds, *settings, question.case.id, "float64" if spec.double else "float32"}:
            self.rows[name]["agreed" if became == "agreed" else "refused"] += 1

    def __str__(self) -> str:
        rows = [f"{name}: {row['agreed']} / {row['refused']}" for name, row in sorted(self.rows.items())]
        return f"{self.total.total()} networks: {dict(self.total)}\nagreed / refused\n" + "\n".join(rows)


def explicit(specs: list[Spec]) -> Callable[[Callable], Callable]:
    """A decorator that makes hypothesis run these first."""

    def decorate(test: Callable) -> Callable:
        for spec in reversed(specs):
            test = example(spec=spec)(test)
        return test

    return decorate


@pytest.mark.slow
def test_random_networks() -> None:
    table, first = Table(), cover()

    @settings(
        max_examples=max(1, COUNT - len(first)),
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @explicit(first)
    @given(spec=specs())
    def every_network(spec: Spec) -> None:
        question = Question.of(spec)
        note(f"seed {spec.seed}: {question.module}")
        became = outcome(question)
        assert not spec.must_be_refused or became in ("NetworkError", "InputError"), f"not refused, but {became}"
        table.add(question, became)

    every_network()
    print(table)
    usual = sum(count for became, count in table.total.items() if REFUSED not in became)
    assert table.total["agreed"] > 0.9 * usual
    never = [kind for kind in {*LAYERS, *STEMS, *WRAPPERS} - {""} if not table.rows[kind]["agreed"]]
    assert not never, f"never agreed: {never}"
    wrong = [kind for kind in {*MUST_REFUSE, *REFUSED_STEMS} if not table.rows[kind]["refused"]]
    assert not wrong, f"never refused: {wrong}"
