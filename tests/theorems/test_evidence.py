"""The evidence and its gradients against explicit determinants and densities, at and away from a minimum."""

from __future__ import annotations

from math import log, pi

import pytest
import torch
from scipy.stats import multivariate_normal

from dnn2gp import FunctionSpace, GaussianLikelihood, WeightSpace, convert
from dnn2gp.inference import GaussNewtonStep

from problems import KINDS, minimum, problem
from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
SPACES = (WeightSpace(), FunctionSpace())


def log_normaliser(kind, case):
    """Σ log Z of the likelihood beside its loss."""
    if kind.startswith("gaussian"):
        sigma = torch.as_tensor(case.likelihood.sigma, dtype=torch.float64).expand(case.y.shape)
        return (sigma.log() + 0.5 * log(2 * pi)).sum()
    return torch.lgamma(case.y + 1).sum() if kind == "poisson" else torch.tensor(0.0)


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", [2, 12])
def test_laplace_evidence_by_explicit_determinants(kind, examples, space):
    """log p(D|w) + log p(w) + P/2 log 2π − ½ log|Σ̃⁻¹|."""
    case = problem(kind, examples)
    J, _, Lam = case.parts()
    w = case.weights
    f = brute_force.outputs(case.module, case.x)
    loss = sum(case.loss(fi, yi) for fi, yi in zip(f, case.y, strict=True))
    log_prior = torch.distributions.Normal(0.0, case.delta.rsqrt()).log_prob(w).sum()
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + torch.diag(case.delta)
    expected = -loss - log_normaliser(kind, case) + log_prior + len(w) / 2 * log(2 * pi) - torch.logdet(precision) / 2
    evidence = convert(
        case.module, (case.x, case.y), case.likelihood, case.delta, inference=space, mean=GaussNewtonStep()
    ).evidence()
    assert evidence.laplace == pytest.approx(expected.item(), rel=1e-10)
    assert evidence.value == (evidence.linear_model if kind.startswith("gaussian") else evidence.laplace)


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", ["gaussian", "gaussian per output"])
@pytest.mark.parametrize("examples", [2, 12])
def test_gaussian_evidence_is_that_of_the_transformed_regression(kind, examples, space):
    """log N(ỹ | 0, K + Λ⁻¹) by scipy, at any w; at a minimum it is Laplace's."""
    case = problem(kind, examples)
    assert evidence_of(case, space).value == pytest.approx(regression_evidence(case), rel=1e-9)
    assert abs(evidence_of(case, space).correction) > 1e-3
    case = minimum(kind, examples)
    assert evidence_of(case, space).value == pytest.approx(regression_evidence(case), rel=1e-9)
    assert evidence_of(case, space).laplace == pytest.approx(regression_evidence(case), rel=1e-9)


def evidence_of(case, space):
    return convert(
        case.module, (case.x, case.y), case.likelihood, case.delta, inference=space, mean=GaussNewtonStep()
    ).evidence()


def regression_evidence(case):
    J, r, Lam = case.parts()
    y_tilde = J @ case.weights - torch.linalg.solve(Lam, r.unsqueeze(-1)).squeeze(-1)
    flat = J.flatten(0, 1)
    covariance = flat @ torch.diag(1 / case.delta) @ flat.T + torch.block_diag(*torch.linalg.inv(Lam))
    return multivariate_normal(torch.zeros(len(flat)).numpy(), covariance.numpy()).logpdf(y_tilde.flatten().numpy())


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical", "poisson"])
@pytest.mark.parametrize("examples", [2, 12])
def test_gradient_in_delta_is_that_of_autograd_through_the_explicit_formula(kind, examples, space):
    case = problem(kind, examples)
    J, r, Lam = case.parts()
    w, delta = case.weights, case.delta.clone().requires_grad_(True)
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + torch.diag(delta)
    value = -0.5 * (delta * w**2).sum() + 0.5 * delta.log().sum() - 0.5 * torch.logdet(precision)
    if kind == "gaussian":
        gradient = torch.einsum("nkp,nk->p", J, r) + delta * w
        value = value + 0.5 * gradient @ torch.linalg.solve(precision, gradient)
    expected = torch.autograd.grad(value, delta)[0]
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, inference=space, mean=GaussNewtonStep())
    found = gp.evidence_gradient()
    torch.testing.assert_close(found.prior_precision, expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.scalar(), expected.sum(), rtol=1e-7, atol=1e-9)
    layers = [expected[:9].sum(), expected[9:].sum()]  # 2 → 3 with bias, then the rest
    torch.testing.assert_close(found.per_layer(), torch.stack(layers), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("form", ["scalar", "per output", "per example", "per example and output"])
def test_gradient_in_sigma_is_that_of_autograd_through_the_explicit_formula(form, space):
    """Through log N(ỹ | 0, K + diag σ²), at a w that is not a minimum, with every form of σ."""
    case = problem("gaussian", 6)
    generator = torch.Generator().manual_seed(2)
    shape = {"scalar": (), "per output": (2,), "per example": (6, 1), "per example and output": (6, 2)}[form]
    sigma = (0.2 + torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_(True)
    J = brute_force.jacobian(case.module, case.x)
    f = brute_force.outputs(case.module, case.x)
    y_tilde = (J @ case.weights - (f - case.y)).flatten()
    flat = J.flatten(0, 1)
    covariance = flat @ torch.diag(1 / case.delta) @ flat.T + torch.diag((sigma**2).expand(6, 2).flatten())
    value = torch.distributions.MultivariateNormal(torch.zeros_like(y_tilde), covariance).log_prob(y_tilde)
    expected = torch.autograd.grad(value, sigma)[0]
    likelihood = GaussianLikelihood(sigma.detach())
    gp = convert(case.module, (case.x, case.y), likelihood, case.delta, inference=space)
    assert gp.evidence().value == pytest.approx(value.item(), rel=1e-9)
    torch.testing.assert_close(gp.evidence_gradient().sigma, expected, rtol=1e-7, atol=1e-8)
