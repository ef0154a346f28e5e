"""Networks beyond the dense limit: trained with L-BFGS, and tuned by the evidence of the exact GP or of Kronecker()."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn

import dnn2gp.tune.large_network as large_network
import dnn2gp.tune.restarts as restarts
from dnn2gp import CategoricalLikelihood, GaussianLikelihood, Kronecker
from dnn2gp.support.errors import DivergedError
from dnn2gp.tune.restarts import fit_restarts

from reference import brute_force


@pytest.fixture(autouse=True)
def every_network_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "DENSE_WEIGHTS", 0)


def build():
    return nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def linear():
    return nn.Sequential(nn.Linear(1, 1)).double()


def data(count=50):
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, count, dtype=torch.float64)[:, None]
    return x, torch.sin(2 * x) + 0.3 * torch.randn(count, 1, generator=generator, dtype=torch.float64)


def by_scipy(network, x, y, delta, sigma):
    """The density of the transformed regression."""
    J, f, w = brute_force.jacobian(network, x)[:, 0], brute_force.outputs(network, x), brute_force.flat_weights(network)
    outputs = J @ w - (f - y)[:, 0]
    covariance = J @ J.T / delta + sigma**2 * torch.eye(len(y)).double()
    return multivariate_normal(torch.zeros(len(y)).numpy(), covariance.numpy()).logpdf(outputs.numpy())


def test_the_evidence_and_the_noise_are_those_of_the_network_that_is_returned():
    """σ² = (‖y − f‖² + λ wᵀw) / N at a minimum, where another σ at the same λ has less evidence."""
    x, y = data()
    found = fit_restarts(build, x, y, GaussianLikelihood(), restarts=2)
    assert found.structure is None
    assert found.settled
    assert found.relative_gradient < 1e-3
    delta, sigma, w = found.prior_precision, found.likelihood.sigma.item(), brute_force.flat_weights(found.network)
    assert found.evidence == pytest.approx(by_scipy(found.network, x, y, delta, sigma), rel=1e-8)
    total = (y - brute_force.outputs(found.network, x)).square().sum() + delta * sigma**2 * w @ w
    assert sigma**2 == pytest.approx(total.item() / len(y), rel=1e-9)
    assert sigma == pytest.approx(0.3, rel=0.25)
    for change in (0.8, 1.25):
        assert by_scipy(found.network, x, y, delta / change**2, sigma * change) < found.evidence


@pytest.mark.slow
def test_it_finds_about_what_gauss_newton_steps_find(monkeypatch: pytest.MonkeyPatch):
    """Two ways to train and search, on the same problem: their largest evidences differ by less than a nat."""
    x, y = data()
    one = fit_restarts(build, x, y, GaussianLikelihood(), restarts=3)
    monkeypatch.setattr(restarts, "DENSE_WEIGHTS", 3000)
    other = fit_restarts(build, x, y, GaussianLikelihood(), restarts=3)
    assert one.evidence == pytest.approx(other.evidence, abs=1.0)
    assert one.likelihood.sigma.item() == pytest.approx(other.likelihood.sigma.item(), rel=0.1)


def test_what_is_given_is_kept():
    x, y = data()
    found = fit_restarts(build, x, y, GaussianLikelihood(0.3), prior_precision=0.5, restarts=1)
    assert (found.prior_precision, found.rounds, found.settled) == (pytest.approx(0.5, rel=1e-12), 1, True)
    assert found.likelihood.sigma.item() == 0.3
    open_noise = fit_restarts(build, x, y, GaussianLikelihood(), prior_precision=0.5, restarts=1)
    assert open_noise.prior_precision == pytest.approx(0.5, rel=1e-12)
    assert open_noise.likelihood.sigma.item() == pytest.approx(0.3, rel=0.3)


@pytest.mark.slow
def test_classes():
    x, y = data()
    labels = (y[:, 0] > 0).long()

    def two():
        return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 2)).double()

    found = fit_restarts(two, x, labels, CategoricalLikelihood(), restarts=2)
    assert found.settled
    for change in (1 / 20, 20):
        delta = found.prior_precision * change
        fixed = fit_restarts(two, x, labels, CategoricalLikelihood(), prior_precision=delta, restarts=2)
        assert fixed.evidence < found.evidence


def test_beyond_the_exact_size_the_structure_is_kronecker(monkeypatch: pytest.MonkeyPatch):
    """Of a single linear layer with one output, Kronecker factors are exact, and so is their evidence."""
    x, y = data(20)
    monkeypatch.setattr(large_network, "EXACT_SIZE", 2)
    exact = fit_restarts(linear, x, y, GaussianLikelihood(), restarts=1)
    assert exact.structure is None  # two weights
    monkeypatch.setattr(large_network, "EXACT_SIZE", 1)
    found = fit_restarts(linear, x, y, GaussianLikelihood(), restarts=1)
    assert found.structure == Kronecker()
    delta, sigma = found.prior_precision, found.likelihood.sigma.item()
    assert found.evidence == pytest.approx(by_scipy(found.network, x, y, delta, sigma), abs=1e-4)


def test_the_global_generator_stays_as_it_is():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    fit_restarts(linear, *data(10), GaussianLikelihood(0.3), prior_precision=1.0, restarts=2)
    assert torch.equal(state, torch.get_rng_state())


def test_a_network_without_a_finite_loss_is_an_error():
    x, y = data(10)
    with pytest.raises(DivergedError):
        fit_restarts(linear, x, y * 1e300, GaussianLikelihood(0.3), prior_precision=1.0, restarts=1)
