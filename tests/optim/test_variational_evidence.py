"""The three evidences of VI against explicit formulas in float64."""

from __future__ import annotations

from math import log, pi

import pytest
import torch
from scipy.stats import multivariate_normal

from dnn2gp import OGGN, VOGGN, CategoricalLikelihood, GaussianLikelihood

from problems import problem
from reference import brute_force

SIGMA, DELTA, BETA = 0.3, 0.7, 0.2


def trained(kind, optimizer, **more):
    case = problem(kind, 6)
    likelihood = GaussianLikelihood(SIGMA) if kind == "gaussian" else CategoricalLikelihood()
    found = optimizer(case.module, likelihood, 6, lr=BETA, prior_precision=DELTA, initial_precision=3.0, **more)
    for _ in range(3):
        found.step(case.x, case.y)
    return case, found


def regression_evidence(J, y_tilde, mean, covariance, noise_precision):
    """log N(ỹ | J m, J V Jᵀ + Λ⁻¹) by scipy."""
    flat, count = J.flatten(0, 1), y_tilde.numel()
    spread = flat @ covariance @ flat.T + torch.eye(count).double() / noise_precision
    return multivariate_normal((flat @ mean).numpy(), spread.numpy()).logpdf(y_tilde.flatten().numpy())


def test_both_evidences_of_the_linear_model_of_oggn():
    """At the mean there is nothing random: Eq. (13) and the plain prior, written out."""
    case, optimizer = trained("gaussian", OGGN)
    state = optimizer.snapshot()
    module = brute_force.with_weights(case.module, state.mean)
    J, f = brute_force.jacobian(module, case.x), brute_force.outputs(module, case.x)
    y_tilde = J @ state.mean - (f - case.y)
    precision, size = state.precision.dense(), len(state.mean)
    tempered = (1 - BETA) * precision + BETA * DELTA * torch.eye(size).double()  # V_t⁻¹
    prior_mean = torch.linalg.solve(tempered, (1 - BETA) * precision @ state.mean)  # m_t
    expected = regression_evidence(J, y_tilde, prior_mean, torch.linalg.inv(tempered), BETA / SIGMA**2)
    plain = regression_evidence(J, y_tilde, torch.zeros(size).double(), torch.eye(size).double() / DELTA, SIGMA**-2)
    found = optimizer.evidence((case.x, case.y))
    assert found.linear_model == pytest.approx(expected, rel=1e-9)
    assert found.plain_prior == pytest.approx(plain, rel=1e-9)
    assert found.linear_model != pytest.approx(found.plain_prior, rel=1e-2)


def test_the_elbo_is_a_lower_bound_that_is_written_out():
    case, optimizer = trained("gaussian", VOGGN, seed=0)
    found = optimizer.evidence((case.x, case.y), 30, torch.Generator().manual_seed(1))
    state = optimizer.snapshot()
    q = torch.distributions.MultivariateNormal(state.mean, precision_matrix=state.precision.dense())
    p = torch.distributions.MultivariateNormal(
        torch.zeros_like(state.mean), torch.eye(len(state.mean)).double() / DELTA
    )
    torch.manual_seed(2)
    values = []
    for weights in q.sample((500,)):
        f = brute_force.outputs(brute_force.with_weights(case.module, weights), case.x)
        values.append(-0.5 * ((f - case.y) / SIGMA).square().sum() - f.numel() * (log(SIGMA) + 0.5 * log(2 * pi)))
    fit = torch.stack(values)
    expected = fit.mean() - torch.distributions.kl_divergence(q, p)
    assert abs(found.elbo - expected.item()) < 4 * fit.std().item() * (1 / 30 + 1 / 500) ** 0.5


def test_samples_are_averaged_and_seeded():
    case, optimizer = trained("categorical", VOGGN, seed=0, num_samples=2)
    data = (case.x, case.y)
    one, again = (optimizer.evidence(data, 3, torch.Generator().manual_seed(5)) for _ in range(2))
    assert one == again
    generator = torch.Generator().manual_seed(5)
    singles = [optimizer.evidence(data, 1, torch.Generator().manual_seed(seed)).plain_prior for seed in range(3)]
    assert len(set(singles)) == 3
    assert optimizer.evidence(data, 3, generator).num_samples == 3


def test_they_are_told_apart_in_words():
    case, optimizer = trained("gaussian", OGGN)
    assert "(m_t, V_t)" in str(optimizer.evidence((case.x, case.y)))
