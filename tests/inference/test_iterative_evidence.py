"""The evidence of iterative inference and its derivative in log δ, against dense matrices and autograd."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dnn2gp import FunctionSpace, GaussianLikelihood, Iterative, WeightSpace, convert, load, save
from dnn2gp.inference import GaussNewtonStep
from dnn2gp.inference.iterative.solve import solve

from problems import KINDS, problem
from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


def dense_slope(J, r, Lam, weights, delta, quadratic):
    """∂/∂log c of the log evidence with prior precision c δ, at c = 1, by automatic differentiation."""
    log_c = torch.zeros((), dtype=torch.float64, requires_grad=True)
    precision = log_c.exp() * delta
    if quadratic:  # log N(ỹ | 0, Λ⁻¹ + J V Jᵀ)
        rows = J.flatten(0, 1)
        noise = torch.block_diag(*torch.linalg.inv(Lam))
        outputs = rows @ weights - noise @ r.flatten()
        covariance = noise + rows / precision @ rows.T
        value = -0.5 * torch.logdet(covariance) - 0.5 * outputs @ torch.linalg.solve(covariance, outputs)
    else:  # Laplace's, at the weights
        G = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J)
        value = -0.5 * weights @ (precision * weights) - 0.5 * torch.logdet(G + precision.diag())
        value = value + 0.5 * precision.log().sum()
    (slope,) = torch.autograd.grad(value, log_c)
    return slope.item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inference", [Iterative(rank=100), WeightSpace(), FunctionSpace()], ids=lambda each: each.name)
def test_the_derivative_is_that_of_the_dense_evidence(kind, inference):
    case = problem(kind, 9)
    gp = convert(
        case.module, (case.x, case.y), case.likelihood, case.delta, inference=inference, mean=GaussNewtonStep()
    )
    found = gp.evidence_gradient()
    expected = dense_slope(*case.parts(), case.weights, case.delta, gp.evidence().quadratic)
    assert found.log_precision == pytest.approx(expected, rel=1e-8, abs=1e-8)
    assert found.error == 0 if inference.exact else found.error < 1e-8
    assert (found.prior_precision * case.delta).sum().item() == pytest.approx(expected, rel=1e-7, abs=1e-7)


@pytest.fixture(scope="module")
def regression():
    """A network of 596 weights with 300 examples: log |I + G| and the derivative of the evidence."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 6, generator=generator, dtype=torch.float64)
    y = x[:, :2].sin() + 0.3 * torch.randn(300, 2, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 66), nn.Tanh(), nn.Linear(66, 2)).double()
    J, f = brute_force.jacobian(network, x), brute_force.outputs(network, x)
    rows = J.flatten(0, 1)
    log_det = torch.logdet(rows.T @ rows / 0.3**2 + torch.eye(rows.shape[1], dtype=torch.float64)).item()
    Lam = torch.eye(2, dtype=torch.float64).expand(300, 2, 2) / 0.3**2
    weights, delta = brute_force.flat_weights(network), torch.ones(rows.shape[1], dtype=torch.float64)
    return network, (x, y), log_det, dense_slope(J, (f - y) / 0.3**2, Lam, weights, delta, quadratic=True)


@pytest.mark.parametrize("rank", [64, pytest.param(128, marks=pytest.mark.slow), 256])
def test_the_stated_errors_of_the_evidence_hold(regression, rank):
    """z-scores over eight seeds; with rank 256, few iterations leave a bias that is larger than the standard error."""
    network, data, log_det, slope = regression
    z = []
    for seed in range(8):
        method = Iterative(rank=rank, samples=32, tolerance=1e-6, seed=seed)
        gp = convert(network, data, GaussianLikelihood(0.3), 1.0, inference=method)
        gradient, report = gp.evidence_gradient(), gp.inference.report()
        assert gradient.error == 0.5 * report.effective_dimension_error
        z.append([(gradient.log_precision - slope) / gradient.error, (report.log_det - log_det) / report.log_det_error])
    z = torch.tensor(z).square().mean(0).sqrt()
    assert bool((z > 0.4).all())
    assert bool((z < 1.5).all()), z


def test_the_derivative_needs_no_data_after_loading(regression, tmp_path):
    network, data, _, slope = regression
    gp = convert(network, data, GaussianLikelihood(0.3), 1.0, inference=Iterative(rank=128, samples=16))
    save(gp, tmp_path / "gp.dnn2gp")
    loaded = load(tmp_path / "gp.dnn2gp", copy.deepcopy(network))
    (own, other) = (each.evidence_gradient() for each in (gp, loaded))
    assert (own.log_precision, own.error) == (other.log_precision, other.error)
    assert abs(other.log_precision - slope) < 3 * other.error


def test_what_iterations_have_missed_is_extrapolated():
    """The quadrature after a few steps, plus what is said to be missing, is near the quadrature after many."""
    generator = torch.Generator().manual_seed(0)
    values = torch.logspace(0, 1.5, 80, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(80, 80, generator=generator, dtype=torch.float64)).Q
    H = turn * values @ turn.T
    right = torch.linalg.cholesky(H) @ torch.randn(80, 200, generator=generator, dtype=torch.float64)

    def function(values):
        return values.log() / values

    def after(steps):
        return solve(lambda vectors: H @ vectors, right, torch.clone, 1e-14, steps)

    exact = after(60)
    assert exact.truncation(function).max() < 1e-6
    for steps in (5, 7, 9):
        found = after(steps)
        missing = (exact.quadrature(function) - found.quadrature(function)).mean().abs()
        assert 0.5 < found.truncation(function).mean() / missing < 2


def test_few_steps_go_on():
    """A residual that two steps reach is reduced further; one that takes many steps is not."""
    diagonal = torch.linspace(1, 1.3, 50, dtype=torch.float64)[:, None]
    right = torch.ones(50, 1, dtype=torch.float64)
    plain, early = (
        solve(lambda vectors: diagonal * vectors, right, torch.clone, 0.02, 30, early=each) for each in (None, 1e-4)
    )
    assert plain.iterations.item() <= 2 < early.iterations.item() <= 4
