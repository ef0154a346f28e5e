"""Theorem 1: the Laplace-GGN approximation is the posterior of the linear model, and the Gauss-Newton identity."""

from __future__ import annotations

import warnings

import pytest
import torch

from dnn2gp import Diagonal, FunctionSpace, WeightSpace, convert
from dnn2gp.inference import GaussNewtonStep, LinearModel, NetworkOutput
from dnn2gp.support.errors import NotAMinimumWarning
from dnn2gp.weights import laplace

from problems import KINDS, minimum, problem
from reference import brute_force

# N·K below, near and above P = 17: each likelihood in the middle, two of them everywhere.
CASES = [*((kind, 4) for kind in KINDS), *((kind, count) for kind in ("gaussian", "categorical") for count in (1, 15))]
SPACES = (WeightSpace(), FunctionSpace())


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("kind", "examples"), CASES)
def test_at_a_minimum_the_posterior_is_laplace(kind, examples, space):
    case = minimum(kind, examples)
    J, _, Lam = case.parts()
    w = case.weights
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAMinimumWarning)
        gp = convert(
            case.module, (case.x, case.y), case.likelihood, case.delta, inference=space, mean=GaussNewtonStep()
        )
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + torch.diag(case.delta)
    assert torch.allclose(gp.inference.mean, w, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(gp.posterior.precision.dense(), precision, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["gaussian", "gaussian per output", "bernoulli", "poisson"])
def test_posterior_is_bayesian_regression_on_the_transformed_data(kind):
    """Eq. (8) literally, with ỹ = Jw* − Λ⁻¹r and noise Λ⁻¹, where Λ is invertible."""
    case = minimum(kind, 5)
    J, r, Lam = case.parts()
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=GaussNewtonStep())
    transformed = gp.model.transformed_data
    y_tilde = J @ case.weights - torch.linalg.solve(Lam, r.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(transformed.outputs, y_tilde, rtol=1e-8, atol=1e-8)
    # Textbook GP regression of ỹ in function space: mean K*(K + Λ⁻¹)⁻¹ỹ.
    flat = J.flatten(0, 1)
    V = torch.diag(1 / case.delta)
    noise = torch.block_diag(*torch.linalg.inv(Lam))
    J_test = brute_force.jacobian(case.module, case.x_test).flatten(0, 1)
    gain = J_test @ V @ flat.T @ torch.linalg.inv(flat @ V @ flat.T + noise)
    torch.testing.assert_close(gp.mean(case.x_test).flatten(), gain @ y_tilde.flatten(), rtol=1e-8, atol=1e-8)
    covariance = J_test @ V @ J_test.T - gain @ flat @ V @ J_test.T
    found = gp.covariance(case.x_test).flatten(2, 3).flatten(0, 1)
    torch.testing.assert_close(found, covariance, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("kind", "examples"), CASES)
def test_elsewhere_the_mean_is_one_gauss_newton_step(kind, examples, space):
    """μ = w − Σ̃ ∇ℓ̄(w) for any w, with the gradient of the whole loss by autograd."""
    case = problem(kind, examples)
    J, _, Lam = case.parts()
    gradient = torch.func.grad(case.total_loss)(case.weights)
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + torch.diag(case.delta)
    expected = case.weights - torch.linalg.solve(precision, gradient)
    with pytest.warns(NotAMinimumWarning, match="not at a minimum"):
        gp = convert(
            case.module, (case.x, case.y), case.likelihood, case.delta, inference=space, mean=GaussNewtonStep()
        )
    torch.testing.assert_close(gp.model.gradient, gradient, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(gp.inference.mean, expected, rtol=1e-8, atol=1e-9)
    assert (gp.inference.mean - case.weights).norm() > 1e-3  # so the identity is not that of a minimum


@pytest.mark.parametrize("kind", KINDS)
def test_step_a_and_step_b_say_the_same(kind):
    """laplace(…) and the linear model have one precision; their means differ by the Gauss-Newton step."""
    case = problem(kind)
    gp = _quiet(case)
    expansion, prior = gp.model.expansion, gp.prior
    a, b = laplace(expansion, prior), WeightSpace().infer(LinearModel.from_laplace(expansion, prior)).gaussian()
    torch.testing.assert_close(a.precision.dense(), b.precision.dense(), rtol=0, atol=0)
    assert torch.equal(a.mean, case.weights)
    torch.testing.assert_close(b.mean, gp.inference.mean, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_diagonal_posterior_stays_at_the_network_and_does_not_warn(kind):
    """Eq. (4): its mean is the anchor, so that no prediction differs from the network's."""
    case = problem(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAMinimumWarning)
        gp = convert(
            case.module,
            (case.x, case.y),
            case.likelihood,
            case.delta,
            structure=Diagonal(),
            mean=GaussNewtonStep(),
        )
    assert gp.centre == NetworkOutput()
    outputs = brute_force.outputs(case.module, case.x_test)
    torch.testing.assert_close(gp.predict(case.x_test).latent_mean, outputs, rtol=1e-12, atol=1e-12)
    J, _, Lam = case.parts()
    precision = (torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + torch.diag(case.delta)).diagonal()
    for mean in (gp.inference.mean, gp.posterior.mean, WeightSpace(Diagonal()).infer(gp.model).mean):
        assert torch.equal(mean, case.weights)
    torch.testing.assert_close(gp.posterior.variances(), 1 / precision, rtol=1e-10, atol=0)
    gradient = torch.func.grad(case.total_loss)(case.weights)
    assert gp.inference.step_bound() == pytest.approx((gradient**2 / precision).sum().sqrt().item(), rel=1e-9)


def _quiet(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAMinimumWarning)
        return convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=GaussNewtonStep())
