"""Appendix B: predictive moments of y by inverting the map to ỹ, against explicit formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp import FunctionSpace, GaussianLikelihood, WeightSpace, convert
from dnn2gp.inference import GaussNewtonStep
from dnn2gp.inference.predictive import psd_root
from dnn2gp.support.errors import NotPositiveDefiniteError

from problems import minimum, problem
from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


def parts(case):
    """f, J Σ̃ Jᵀ and J(μ − w) at the test inputs, by brute force."""
    J, r, Lam = case.parts()
    mean, covariance = brute_force.weight_posterior(J, r, Lam, case.weights, case.delta)
    f, J_test = brute_force.outputs(case.module, case.x_test), brute_force.jacobian(case.module, case.x_test)
    return f, J_test @ covariance @ J_test.mT, J_test @ (mean - case.weights)


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
@pytest.mark.parametrize(("kind", "outputs"), [("bernoulli", 1), ("categorical", 4)])
def test_classification_variance_is_noise_plus_noise_j_sigma_j_noise(kind, outputs, space):
    """Eq. (48): y ~ N(p, Λ + Λ J Σ̃ Jᵀ Λ) at a minimum, with Λ = diag p − ppᵀ (p(1−p) for one logit)."""
    case = minimum(kind, 8, outputs)
    f, spread, _ = parts(case)
    p = torch.softmax(f, 1) if kind == "categorical" else 1 / (1 + torch.exp(-f))
    noise = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    prediction = convert(
        case.module, (case.x, case.y), case.likelihood, case.delta, inference=space, mean=GaussNewtonStep()
    ).predict(case.x_test)
    torch.testing.assert_close(prediction.mean, p, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(prediction.aleatoric_covariance, noise, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(prediction.epistemic_covariance, noise @ spread @ noise, rtol=1e-8, atol=1e-10)
    total = (noise + noise @ spread @ noise).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(prediction.variance, total, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
def test_regression_is_the_network_with_variance_sigma_plus_j_sigma_j(space):
    """y ~ N(f_w*, J Σ̃ Jᵀ + σ²I)."""
    case = minimum("gaussian per output", 8)
    f, spread, _ = parts(case)
    prediction = convert(
        case.module, (case.x, case.y), case.likelihood, case.delta, inference=space, mean=GaussNewtonStep()
    ).predict(case.x_test)
    sigma = case.likelihood.sigma
    torch.testing.assert_close(prediction.mean, f, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(prediction.aleatoric, (sigma**2).expand(4, 2), rtol=1e-12, atol=0)
    torch.testing.assert_close(prediction.epistemic_covariance, spread, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(prediction.std**2, spread.diagonal(dim1=1, dim2=2) + sigma**2, rtol=1e-8, atol=0)


def test_poisson_has_its_mean_as_noise():
    """h = Λ = exp f: variance λ + λ J Σ̃ Jᵀ λ."""
    case = minimum("poisson", 8)
    f, spread, _ = parts(case)
    prediction = convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=GaussNewtonStep()).predict(
        case.x_test
    )
    rate = f.exp()
    torch.testing.assert_close(prediction.mean, rate, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(prediction.aleatoric, rate, rtol=1e-10, atol=0)
    torch.testing.assert_close(
        prediction.epistemic_covariance, rate[:, :, None] * spread * rate[:, None], rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical", "poisson"])
def test_away_from_a_minimum_the_mean_follows_the_gauss_newton_step(kind):
    """mean = h(f) + ∂h/∂f · J(μ − w), with ∂h/∂f by autograd; delta uses h(f + J(μ − w))."""
    case = problem(kind, 8)
    f, _, shift = parts(case)
    link = {
        "gaussian": lambda a: a,
        "bernoulli": torch.sigmoid,
        "poisson": torch.exp,
        "categorical": lambda a: torch.softmax(a, -1),
    }[kind]
    slope = torch.stack([torch.autograd.functional.jacobian(link, row) for row in f])
    prediction = convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=GaussNewtonStep()).predict(
        case.x_test
    )
    expected = link(f) + (slope @ shift.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(prediction.mean, expected, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(prediction.delta(), link(f + shift), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(prediction.latent_mean, f + shift, rtol=1e-8, atol=1e-9)


def test_probabilities_probit_and_monte_carlo():
    """Probit: h(m/√(1 + πv/8)). Monte Carlo of one logit: against Gauss-Hermite quadrature."""
    import numpy as np

    case = problem("bernoulli", 8, 1)
    f, spread, shift = parts(case)
    m, v = (f + shift)[:, 0], spread[:, 0, 0]
    prediction = convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=GaussNewtonStep()).predict(
        case.x_test
    )
    torch.testing.assert_close(
        prediction.probit()[:, 0], torch.sigmoid(m / (1 + torch.pi * v / 8).sqrt()), rtol=1e-8, atol=0
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    z, c = torch.tensor(nodes), torch.tensor(weights / weights.sum())
    probabilities = torch.sigmoid(m[:, None] + v.sqrt()[:, None] * z)
    exact = probabilities @ c
    spread_of_mean = ((probabilities**2) @ c - exact**2).sqrt() / 200
    sampled = prediction.monte_carlo(40_000, torch.Generator().manual_seed(0))[:, 0]
    assert ((sampled - exact) / spread_of_mean).abs().max() < 4


def test_monte_carlo_of_softmax_uses_the_whole_covariance():
    case = problem("categorical", 8, 4)
    f, spread, shift = parts(case)
    prediction = convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=GaussNewtonStep()).predict(
        case.x_test
    )
    draws = torch.distributions.MultivariateNormal(f + shift, spread)
    torch.manual_seed(5)
    probabilities = torch.softmax(draws.sample((60_000,)), -1)
    error = prediction.monte_carlo(60_000, torch.Generator().manual_seed(0)) - probabilities.mean(0)
    assert (error / (probabilities.std(0) * (2 / 60_000) ** 0.5)).abs().max() < 4.5


def test_samples_of_y_have_the_predictive_moments():
    case = problem("gaussian", 8)
    f, spread, shift = parts(case)
    prediction = convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=GaussNewtonStep()).predict(
        case.x_test
    )
    y = prediction.sample(20_000, torch.Generator().manual_seed(0))
    variance = spread.diagonal(dim1=1, dim2=2) + 0.3**2
    assert ((y.mean(0) - f - shift) / (variance / 20_000).sqrt()).abs().max() < 4.5
    assert ((y.var(0) - variance) / (variance * (2 / 20_000) ** 0.5)).abs().max() < 4.5


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_samples_of_y_have_the_shape_of_the_outputs(kind):
    case = problem(kind, 8, 6 if kind == "gaussian" else 3)
    module = nn.Sequential(case.module, nn.Unflatten(1, (2, 3))) if kind == "gaussian" else case.module
    prediction = convert(module, (case.x, case.y), case.likelihood, case.delta, mean=GaussNewtonStep()).predict(
        case.x_test
    )
    assert prediction.sample(5).shape == ((5, 4, 2, 3) if kind == "gaussian" else (5, 4))


def test_a_covariance_that_is_none_is_refused():
    root = torch.tensor([[1.0, 0.0], [0.0, -1e-3]], dtype=torch.float64)
    with pytest.raises(NotPositiveDefiniteError, match=r"eigenvalue -0\.001"):
        psd_root(root)
    rounding = torch.tensor([[1.0, 1.0], [1.0, 1.0 - 1e-15]], dtype=torch.float64)
    torch.testing.assert_close(psd_root(rounding) @ psd_root(rounding).T, rounding, rtol=0, atol=1e-14)


def test_noise_at_the_test_inputs_can_be_given():
    case = problem("gaussian", 8)
    sigma = torch.full((4, 2), 0.7, dtype=torch.float64)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta)
    prediction = gp.predict(case.x_test, GaussianLikelihood(sigma))
    torch.testing.assert_close(prediction.aleatoric, sigma**2, rtol=1e-12, atol=0)
