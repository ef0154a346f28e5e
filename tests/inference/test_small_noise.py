"""Small noise and small prior precisions: against a closed form in 60 digits, by mpmath (which torch needs)."""

from __future__ import annotations

import copy
import math

import mpmath
import pytest
import torch
from torch import nn

from dnn2gp import FunctionSpace, GaussianLikelihood, WeightSpace, convert, load, save
from dnn2gp.support.errors import IllConditionedError

from ..reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
SPACES = pytest.mark.parametrize("inference", [FunctionSpace(), WeightSpace()], ids=lambda each: each.name)
GRID = [(sigma, delta) for sigma in (1e-1, 1e-3, 1e-5) for delta in (1e-6, 1e-4, 1e-2, 1.0, 1e3, 1e6)]


class ClosedForm:
    """The GP of y = f_w(x) + J(x)(v − w) + ε, with v ~ N(0, δ⁻¹I), from A = σ²I + J Jᵀ/δ, in 60 digits."""

    def __init__(self, network: nn.Module, x, y, tests, sigma: float, delta: float) -> None:
        self.digits = mpmath.workdps(60)
        with self.digits:
            jacobians = [_matrix(brute_force.jacobian(network, each)[:, 0]) for each in (x, tests)]
            weights = _matrix(brute_force.flat_weights(network)[:, None])
            outputs = [_matrix(brute_force.outputs(network, each)) for each in (x, tests)]
            targets = jacobians[0] * weights - outputs[0] + _matrix(y)
            matrix = jacobians[0] * jacobians[0].T / mpmath.mpf(delta) + mpmath.mpf(sigma) ** 2 * mpmath.eye(len(x))
            cross = jacobians[1] * jacobians[0].T / mpmath.mpf(delta)
            inverse, lower = mpmath.inverse(matrix), mpmath.cholesky(matrix)
            mean = outputs[1] - jacobians[1] * weights + cross * inverse * targets
            covariance = jacobians[1] * jacobians[1].T / mpmath.mpf(delta) - cross * inverse * cross.T
            log_det = 2 * sum(mpmath.log(lower[i, i]) for i in range(len(x)))
            square = (targets.T * inverse * targets)[0]
            self.evidence = float(-(square + log_det + len(x) * mpmath.log(2 * mpmath.pi)) / 2)
            self.mean = torch.tensor([float(value) for value in mean], dtype=torch.float64)
            variances = [float(covariance[i, i]) for i in range(len(tests))]
            self.variance = torch.tensor(variances, dtype=torch.float64)


def _matrix(values: torch.Tensor) -> mpmath.matrix:
    return mpmath.matrix(values.tolist())


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, tuple, tuple, torch.Tensor]:
    """A trained 1-30-1 tanh network, its data, two noise-free points far from its outputs, and test inputs."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    x = torch.linspace(-2, 2, 8, dtype=torch.float64)[:, None]
    y = torch.sin(2 * x)
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        penalty = sum(0.5 * weights.square().sum() for weights in network.parameters())
        loss = 50 * (network(x) - y).square().sum() + penalty
        loss.backward()
        return loss

    optimizer.step(closure)
    more = torch.tensor([[0.3], [2.5]], dtype=torch.float64)
    tests = torch.cat([x, more, torch.linspace(-3, 3, 5, dtype=torch.float64)[:, None]])
    return network, (x, y), (more, torch.sin(2 * more)), tests


def check(gp, tests, oracle: ClosedForm, sigma: float, tolerance: float) -> None:
    """Mean and standard deviation in units of that of a new observation, and the evidence relative to itself.

    The outputs of the network are sums of 31 numbers in its dtype, and are given in it.
    """
    prediction = gp.predict(tests)
    spread = (oracle.variance + sigma**2).sqrt()
    errors = (prediction.latent_mean[:, 0].double() - oracle.mean).abs()
    size = gp.model.expansion.anchor[-31:].double().abs().sum()
    assert (errors <= tolerance * spread + 31 * size * torch.finfo(tests.dtype).eps / 2).all()
    found = (prediction.latent_covariance[:, 0, 0].double().clamp(min=0) + sigma**2).sqrt()
    assert ((found - spread).abs() / spread).max() < tolerance
    assert float(gp.evidence()) == pytest.approx(oracle.evidence, rel=tolerance)


@SPACES
@pytest.mark.parametrize(("sigma", "delta"), GRID)
def test_float64(problem, inference, sigma: float, delta: float) -> None:
    network, (x, y), _, tests = problem
    gp = convert(network, (x, y), GaussianLikelihood(sigma), delta, inference=inference)
    check(gp, tests, ClosedForm(network, x, y, tests, sigma, delta), sigma, 1e-6)


@SPACES
@pytest.mark.parametrize(("sigma", "delta"), GRID)
def test_conditioned(problem, inference, sigma: float, delta: float) -> None:
    """Two noise-free points that the network does not pass through: 10⁵ standard deviations of the noise away."""
    network, (x, y), (more, labels), tests = problem
    gp = convert(network, (x, y), GaussianLikelihood(sigma), delta, inference=inference).condition((more, labels))
    oracle = ClosedForm(network, torch.cat([x, more]), torch.cat([y, labels]), tests, sigma, delta)
    check(gp, tests, oracle, sigma, 2e-6 if sigma * delta**0.5 < 1e-6 else 1e-6)


@SPACES
@pytest.mark.parametrize(("sigma", "delta"), [(1e-3, 1e-4), (1e-4, 1e-2), (1e-5, 1e-6), (1e-1, 1.0)])
def test_evidence_function(problem, inference, sigma: float, delta: float) -> None:
    """At the GP's own δ and σ, and at others."""
    network, (x, y), _, tests = problem
    function = convert(network, (x, y), GaussianLikelihood(sigma), delta, inference=inference).evidence_function()
    for c, s in [(1.0, 1.0), (1e-4, 2.0), (1e6, 0.5)]:
        oracle = ClosedForm(network, x, y, tests, s * sigma, c * delta)
        assert float(function(c, s)) == pytest.approx(oracle.evidence, rel=1e-9)


@SPACES
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(("sigma", "delta"), [*GRID, (1e-4, 1.0), (1e-2, 1e-2)])
def test_float32_is_right_or_refused(problem, inference, trained: bool, sigma: float, delta: float) -> None:
    network, (x, y), _, tests = problem
    torch.manual_seed(3)
    network = network if trained else nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
    network = copy.deepcopy(network).float()
    x, y, tests = x.float(), y.float(), tests.float()
    if _refused(network, (x, y), sigma, delta, inference):
        assert sigma <= 0.01
        return
    gp = convert(network, (x, y), GaussianLikelihood(sigma), delta, inference=inference)
    wide = copy.deepcopy(network).double()
    rounded = float(torch.tensor(sigma))
    oracle = ClosedForm(wide, x.double(), y.double(), tests.double(), rounded, delta)
    check(gp, tests, oracle, sigma, 1e-3)


def _refused(network, data, sigma, delta, inference) -> bool:
    try:
        convert(network, data, GaussianLikelihood(sigma), delta, inference=inference)
    except IllConditionedError as error:
        return "Use float64" in str(error)
    return False


@SPACES
def test_all_answers_agree_with_a_closed_form(problem, inference) -> None:
    """Joint covariances, weight variances, products with Σ̃ and samples, where the QR decomposition is used."""
    network, (x, y), _, tests = problem
    sigma, delta = 1e-4, 1e-2
    gp = convert(network, (x, y), GaussianLikelihood(sigma), delta, inference=inference)
    J, J_test = (brute_force.jacobian(network, each)[:, 0] for each in (x, tests))
    _, values, basis = torch.linalg.svd(J, full_matrices=True)
    shrunk = torch.cat([1 / (delta + (values / sigma).square()), torch.full((len(basis) - len(x),), 1 / delta)])
    rows = J_test @ basis.T
    truth = rows @ (shrunk[:, None] * rows.T)
    spread = (truth.diagonal() + sigma**2).sqrt()
    assert ((gp.covariance(tests)[:, 0, :, 0] - truth).abs() / torch.outer(spread, spread)).max() < 1e-6
    torch.testing.assert_close(gp.covariance(tests, tests[:3]), gp.covariance(tests)[:, :, :3], rtol=0, atol=1e-14)
    variances = (basis.T.square() @ shrunk[:, None])[:, 0]
    torch.testing.assert_close(gp.inference.weight_variances(), variances, rtol=0, atol=1e-10 / delta)
    vector = torch.linspace(-1, 1, len(basis), dtype=torch.float64)
    moved = gp.inference.covariance_matmul(vector[:, None])[:, 0]
    torch.testing.assert_close(J_test @ moved, rows @ (shrunk * (basis @ vector)), rtol=1e-6, atol=1e-6)
    drawn = gp.inference.sample_weights(20000, torch.Generator().manual_seed(0))
    root = gp.posterior.precision.whiten(J_test)  # through the P × P precision
    assert ((root @ root.T - truth).abs() / torch.outer(spread, spread)).max() < 1e-6
    moves = (drawn - gp.inference.mean) @ J_test.T
    assert ((moves.var(0) - truth.diagonal()).abs() / spread.square()).max() < 5 * math.sqrt(2 / 20000)


@SPACES
def test_saved_and_loaded(problem, inference, tmp_path) -> None:
    network, data, more, tests = problem
    gp = convert(network, data, GaussianLikelihood(1e-4), 1e-2, inference=inference).condition(more)
    save(gp, tmp_path / "gp.safetensors")
    again = load(tmp_path / "gp.safetensors", network)
    first, second = gp.predict(tests), again.predict(tests)
    assert torch.equal(first.latent_mean, second.latent_mean)
    assert torch.equal(first.latent_covariance, second.latent_covariance)
    assert gp.evidence() == again.evidence()


def test_inputs_have_gradients(problem) -> None:
    network, data, _, tests = problem
    inputs = tests[-2:].clone().requires_grad_()
    gp = convert(network, data, GaussianLikelihood(1e-4), 1e-2, inference=FunctionSpace())
    total = gp.predict(inputs).latent_covariance.sum()
    (gradient,) = torch.autograd.grad(total, inputs)
    step = 1e-6
    ends = [gp.predict(tests[-2:] + sign * step).latent_covariance[:, 0, 0] for sign in (1, -1)]
    torch.testing.assert_close(gradient[:, 0], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=0)


@SPACES
def test_refused_where_memory_is_too_small(problem, inference) -> None:
    """The matrices of Cholesky fit into the budget, those of QR do not."""
    torch.manual_seed(1)
    width, count, budget = (4000, 300, 4e7) if isinstance(inference, FunctionSpace) else (100, 400, 3.2e6)
    network = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1)).double()
    x = torch.linspace(-2, 2, count, dtype=torch.float64)[:, None]
    with pytest.raises(IllConditionedError, match="QR decomposition"):
        convert(network, (x, x.sin()), GaussianLikelihood(1e-5), 1e-4, inference=inference, memory_budget=budget)


def test_one_precision_per_layer_is_refused(problem) -> None:
    network, data, _, _ = problem
    gp = convert(network, data, GaussianLikelihood(1e-5), 1e-4)
    with pytest.raises(IllConditionedError, match="one δ per layer"):
        gp.evidence_function(per_layer=True)(1.0)
