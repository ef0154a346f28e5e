"""The sampled baseline (DNN-Laplace) against a plain loop over sampled weights."""

from __future__ import annotations

import pytest
import torch

from dnn2gp import Dense, Diagonal, FunctionSpace, GaussianLikelihood, convert
from dnn2gp.gp import sample_network
from dnn2gp.weights import laplace

from problems import functional, problem

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


@pytest.mark.parametrize("structure", [Dense(), Diagonal()])
@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_moments_over_sampled_networks(kind, structure):
    case = problem(kind, 8, 3)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta)
    posterior = laplace(gp.model.expansion, gp.prior, structure)
    found = sample_network(gp, case.x_test, 50, posterior=posterior, generator=torch.Generator().manual_seed(0))
    weights = posterior.sample(50, torch.Generator().manual_seed(0))
    outputs = torch.stack([functional(case.module, w, case.x_test) for w in weights])
    torch.testing.assert_close(found.outputs, outputs, rtol=1e-12, atol=1e-12)
    means = torch.softmax(outputs, -1) if kind == "categorical" else outputs
    noise = means * (1 - means) if kind == "categorical" else torch.full_like(means, 0.3**2)
    torch.testing.assert_close(found.mean, means.mean(0), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.epistemic, means.var(0, correction=0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.aleatoric, noise.mean(0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.std**2, noise.mean(0) + means.var(0, correction=0), rtol=1e-10, atol=1e-12)
    assert repr(found) == "SampledPredictive(50 networks, 4 inputs, outputs of shape (3,))"


def test_by_default_the_posterior_of_the_gp_is_sampled_without_forming_it():
    """In function space P × P never appears: LeNet-sized networks can be sampled."""
    case = problem("gaussian", 4)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, inference=FunctionSpace())
    found = sample_network(gp, case.x_test, 30, generator=torch.Generator().manual_seed(0))
    weights = gp.inference.sample_weights(30, torch.Generator().manual_seed(0))
    expected = torch.stack([functional(case.module, w, case.x_test) for w in weights])
    torch.testing.assert_close(found.outputs, expected, rtol=1e-12, atol=1e-12)
    assert "posterior" not in vars(gp)  # the cached dense posterior
    noisy = sample_network(gp, case.x_test, 3, likelihood=GaussianLikelihood(0.7))
    torch.testing.assert_close(noisy.aleatoric, torch.full((4, 2), 0.49, dtype=torch.float64))


@pytest.mark.slow
def test_a_linear_network_sampled_has_the_moments_of_the_gp():
    """Where the network is linear, sampling weights and the GP are one, up to the Monte Carlo error."""
    torch.manual_seed(0)
    network = torch.nn.Linear(2, 1).double()
    x, y = torch.randn(6, 2, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    gp = convert(network, (x, y), GaussianLikelihood(0.5), 1.0)
    found = sample_network(gp, x, 20_000, generator=torch.Generator().manual_seed(0))
    exact = gp.predict(x)
    assert ((found.mean - exact.mean) / (exact.epistemic / 20_000).sqrt()).abs().max() < 4.5
    assert ((found.epistemic / exact.epistemic) - 1).abs().max() < 4.5 * (2 / 20_000) ** 0.5
