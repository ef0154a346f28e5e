"""Weight space and function space are one posterior: mean, joint covariance, samples, evidence; any likelihood."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dnn2gp import FunctionSpace, GaussianLikelihood, WeightSpace, convert
from dnn2gp.inference import GaussNewtonStep, LinearisedMode
from dnn2gp.inference.calibration import Calibration
from dnn2gp.weights import Expansion

from problems import KINDS, problem
from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


def both(case, **options):
    data = (case.x, case.y)
    return [
        convert(case.module, data, case.likelihood, case.delta, inference=s, **options)
        for s in (WeightSpace(), FunctionSpace())
    ]


def assert_agree(a, b, tolerance=1e-8):
    """Equal relative to the largest entry."""
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance * b.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "examples", "outputs", "width"),
    [
        *((kind, *sizes) for kind in KINDS for sizes in ((3, 2, 4), (12, 2, 3))),
        *((kind, *sizes) for kind in ("gaussian", "categorical") for sizes in ((40, 3, 2), (1, 2, 1))),
    ],
)
@pytest.mark.parametrize("mean", [GaussNewtonStep(), LinearisedMode()], ids=repr)
def test_all_answers_agree(kind, examples, outputs, width, mean):
    weight, function = both(problem(kind, examples, outputs, width), mean=mean)
    generator = torch.Generator().manual_seed(1)
    x, z = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (4, 3))
    assert_agree(weight.inference.mean, function.inference.mean)
    assert_agree(weight.mean(x), function.mean(x))
    assert_agree(weight.covariance(x), function.covariance(x))
    assert_agree(weight.covariance(x, z), function.covariance(x, z))
    assert_agree(weight.predict(x).latent_covariance, function.predict(x).latent_covariance)
    assert_agree(weight.predict(x).mean, function.predict(x).mean)
    assert_agree(weight.evidence().value, function.evidence().value)
    assert_agree(weight.evidence().correction, function.evidence().correction)
    assert_agree(weight.inference.weight_variances(), function.inference.weight_variances())
    assert_agree(weight.evidence_gradient().prior_precision, function.evidence_gradient().prior_precision, 1e-7)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    kind=st.sampled_from(KINDS),
    examples=st.integers(1, 6),
    outputs=st.integers(1, 3),
    width=st.integers(1, 3),
    seed=st.integers(0, 10_000),
)
def test_tiny_problems_agree_with_each_other_and_with_brute_force(kind, examples, outputs, width, seed):
    """N = 1, K = 1, N·K > P and < P, in one property."""
    case = problem(kind, examples, max(outputs, 2) if kind == "categorical" else outputs, width, seed)
    J, r, Lam = case.parts()
    mean, covariance = brute_force.weight_posterior(J, r, Lam, case.weights, case.delta)
    J_test = brute_force.jacobian(case.module, case.x_test)
    expected = torch.einsum("nkp,pq,mlq->nkml", J_test, covariance, J_test)
    log_det = torch.linalg.slogdet(torch.linalg.inv(covariance) / case.delta)[1]
    for gp in both(case, mean=GaussNewtonStep()):
        assert_agree(gp.inference.mean, mean)
        assert_agree(gp.covariance(case.x_test), expected)
        assert abs(2 * gp.evidence().complexity - log_det) <= 1e-8 * max(1, log_det)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_features_agree(kind):
    """The empirical Fisher in both spaces, and as brute force: Σ̃⁻¹ = Σ gᵢgᵢᵀ + diag δ."""
    case = problem(kind, 8)
    J, r, _ = case.parts()
    gradients = torch.einsum("nkp,nk->np", J, r)
    precision = gradients.T @ gradients + torch.diag(case.delta)
    mean = case.weights - torch.linalg.solve(precision, gradients.sum(0) + case.delta * case.weights)
    J_test = brute_force.jacobian(case.module, case.x_test)
    covariance = torch.einsum("nkp,pq,mlq->nkml", J_test, torch.linalg.inv(precision), J_test)
    for gp in both(case, mean=GaussNewtonStep(), expansion=Expansion.empirical_fisher):
        assert_agree(gp.inference.mean, mean)
        assert_agree(gp.covariance(case.x_test), covariance)
        assert_agree(gp.predict(case.x_test).latent_covariance, torch.stack([covariance[i, :, i] for i in range(4)]))


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
@pytest.mark.parametrize("calibrated", [False, True])
def test_function_samples_have_the_posterior_moments_and_are_coherent(kind, space, calibrated):
    case = problem(kind, 5)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, inference=space, mean=GaussNewtonStep())
    if calibrated:
        gp = replace(gp, calibration=Calibration(0.3, 2.0 if kind == "categorical" else 1.0))
    count = 40_000
    functions = gp.sample_functions(count, torch.Generator().manual_seed(1))
    values = functions(case.x_test)
    assert torch.equal(values, functions(case.x_test))  # the same functions again
    torch.testing.assert_close(values[:, 1:3], functions(case.x_test[1:3]), rtol=1e-12, atol=1e-12)
    flat = values.flatten(1)
    covariance = gp.covariance(case.x_test).flatten(2, 3).flatten(0, 1)
    mean = gp.predict(case.x_test).latent_mean.flatten()
    error = (flat.mean(0) - mean) / (covariance.diagonal() / count).sqrt()
    assert error.abs().max() < 4.5
    # The variance of an entry of a sample covariance is (C_ii C_jj + C_ij²) / S.
    spread = ((covariance.diagonal()[:, None] * covariance.diagonal() + covariance**2) / count).sqrt()
    assert ((torch.cov(flat.T) - covariance) / spread).abs().max() < 4.5


def test_per_example_noise_agrees():
    case = problem("gaussian", 7)
    sigma = torch.linspace(0.1, 1.0, 14, dtype=torch.float64).reshape(7, 2)
    case = type(case)(case.module, case.x, case.y, GaussianLikelihood(sigma), case.loss, case.delta, case.x_test)
    J = brute_force.jacobian(case.module, case.x)
    precision = torch.einsum("nkp,nk,nkq->pq", J, sigma**-2, J) + torch.diag(case.delta)
    J_test = brute_force.jacobian(case.module, case.x_test)
    expected = torch.einsum("nkp,pq,mlq->nkml", J_test, torch.linalg.inv(precision), J_test)
    for gp in both(case, mean=GaussNewtonStep()):
        assert_agree(gp.covariance(case.x_test), expected)
