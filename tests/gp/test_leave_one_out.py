"""gp.leave_one_out() against refits of the linear model without each example."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

from dnn2gp import BlockDiagonal, Diagonal, FunctionSpace, GaussianLikelihood, WeightSpace, convert
from dnn2gp.inference import GaussNewtonStep, LinearisedMode, NetworkOutput
from dnn2gp.support.errors import IllConditionedError, InputError, NotAMinimumWarning
from dnn2gp.weights.expansion import Expansion

from problems import problem
from reference import brute_force, linearised

SPACES = (WeightSpace(), FunctionSpace())


def _quiet(case, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAMinimumWarning)
        return convert(case.module, (case.x, case.y), case.likelihood, case.delta, **settings)


def _refitted(case):
    f = brute_force.outputs(case.module, case.x)
    parts = brute_force.jacobian(case.module, case.x), f, case.weights, case.y, case.loss, case.delta
    found = [linearised.without(*parts, out) for out in range(len(f))]
    return torch.stack([mean for mean, _ in found]), torch.stack([covariance for _, covariance in found])


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", ["gaussian", "gaussian per output"])
@pytest.mark.parametrize("examples", [2, 9])
def test_exact_for_gaussian_likelihoods(kind, space, examples):
    case = problem(kind, examples)
    mean, covariance = _refitted(case)
    found = _quiet(case, inference=space).leave_one_out()
    torch.testing.assert_close(found.latent_mean, mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.latent_covariance, covariance, rtol=1e-8, atol=1e-9)
    noise = covariance + torch.diag_embed(case.likelihood.sigma.expand(2).square())
    expected = torch.distributions.MultivariateNormal(mean, noise).log_prob(case.y)
    torch.testing.assert_close(found.log_prob, expected, rtol=1e-8, atol=1e-8)
    assert found.nll == pytest.approx(-expected.mean().item())


@pytest.mark.parametrize("space", SPACES)
def test_a_conditioned_gp_with_another_noise(space):
    case = problem("gaussian", 9)
    first, more = slice(0, 5), slice(5, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAMinimumWarning)
        gp = convert(case.module, (case.x[first], case.y[first]), case.likelihood, case.delta, inference=space)
    gp = gp.condition((case.x[more], case.y[more]), GaussianLikelihood(0.7))
    sigma = torch.tensor([0.3] * 5 + [0.7] * 4, dtype=torch.float64)[:, None]
    own = convert_quietly(case, GaussianLikelihood(sigma), inference=space)
    torch.testing.assert_close(gp.leave_one_out().log_prob, own.leave_one_out().log_prob, rtol=1e-7, atol=1e-8)


def convert_quietly(case, likelihood, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAMinimumWarning)
        return convert(case.module, (case.x, case.y), likelihood, case.delta, **settings)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", ["bernoulli", "categorical", "poisson", "custom"])
def test_first_order_for_others(kind, space):
    """Close to a refit, far closer than the prediction that has seen the example."""
    case = problem(kind, 25, width=5)
    mean, _ = _refitted(case)
    gp = _quiet(case, inference=space, mean=LinearisedMode())
    found = gp.leave_one_out().latent_mean
    seen = gp.predict(case.x).latent_mean
    if kind == "categorical":
        mean, found, seen = (f - f.mean(1, keepdim=True) for f in (mean, found, seen))
    moved, missed = (mean - seen).flatten(), (found - seen).flatten()
    assert torch.corrcoef(torch.stack([moved, missed]))[0, 1] > 0.98
    assert (mean - found).norm() < 0.25 * (mean - seen).norm()


def test_the_formula_by_explicit_matrices():
    """V₋ = (I − VΛ)⁻¹V and f₋ = f + V₋ r at the mode, K × K blocks of softmax included."""
    case = problem("categorical", 8, outputs=3)
    f = brute_force.outputs(case.module, case.x)
    J = brute_force.jacobian(case.module, case.x)
    parts = J, f, case.weights, case.y, case.loss, case.delta
    theta = linearised.mode(*parts)
    at_mode = f + J @ (theta - case.weights)
    r, Lam = brute_force.residual_and_precision(case.loss, at_mode, case.y)
    covariance = torch.linalg.inv(torch.func.hessian(lambda at: linearised.total(at, *parts))(theta))
    V = torch.einsum("nkp,pq,nlq->nkl", J, covariance, J)
    left = torch.linalg.solve(torch.eye(3, dtype=V.dtype) - V @ Lam, V)
    shift = (left @ r.unsqueeze(-1)).squeeze(-1)
    found = _quiet(case, mean=LinearisedMode()).leave_one_out()
    torch.testing.assert_close(found.latent_covariance, left, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.latent_mean, at_mode + shift, rtol=1e-6, atol=1e-6)
    around = _quiet(case, mean=NetworkOutput(sites_at_mode=True)).leave_one_out()
    torch.testing.assert_close(around.latent_mean, f + shift, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("mean", [NetworkOutput(), NetworkOutput(sites_at_mode=True)])
def test_a_regression_around_its_network(mean, space):
    """f + V₋ r with r at the mode, wherever the sites are: what the refits move, added to the network."""
    case = problem("gaussian", 9)
    refitted, covariance = _refitted(case)
    f, J = brute_force.outputs(case.module, case.x), brute_force.jacobian(case.module, case.x)
    theta = linearised.mode(J, f, case.weights, case.y, case.loss, case.delta)
    found = _quiet(case, inference=space, mean=mean).leave_one_out()
    moved = refitted - (f + J @ (theta - case.weights))
    torch.testing.assert_close(found.latent_mean, f + moved, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.latent_covariance, covariance, rtol=1e-7, atol=1e-8)


def test_away_from_a_minimum_it_warns():
    case = problem("categorical", 8, outputs=3)
    with pytest.warns(NotAMinimumWarning, match="leave_one_out"):
        _quiet(case, mean=GaussNewtonStep()).leave_one_out()
    regression = problem("gaussian", 30)  # an approximate posterior has no exact step to the mode
    gp = convert(regression.module, (regression.x, regression.y), regression.likelihood, 1.0, structure=BlockDiagonal())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(InputError):
            gp.leave_one_out()
    assert any(issubclass(each.category, NotAMinimumWarning) for each in caught)


def test_what_has_no_leave_one_out_says_so():
    case = problem("categorical", 8, outputs=3)
    with pytest.raises(InputError, match="leave_one_out"):
        _quiet(case, mean=NetworkOutput(), expansion=Expansion.empirical_fisher).leave_one_out()
    # A diagonal precision counts each example once per weight: its covariance is not that of the data.
    wide = problem("categorical", 40, outputs=3, width=30)
    gp = convert(wide.module, (wide.x, wide.y), wide.likelihood, 1e-6, structure=Diagonal(), mean=NetworkOutput())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAMinimumWarning)
        with pytest.raises(InputError, match="leave_one_out"):
            gp.leave_one_out()


def test_rounding_is_announced():
    case = problem("gaussian", 4)
    gp = convert_quietly(case, GaussianLikelihood(1e-7), mean=GaussNewtonStep())
    with pytest.raises(IllConditionedError, match="leave_one_out"):
        gp.leave_one_out()
