"""Several starts at once: what they end at is a minimum, and the largest evidence near it."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn

import dnn2gp.tune.restarts as restarts
from dnn2gp import CategoricalLikelihood, GaussianLikelihood
from dnn2gp.support.errors import InputError
from dnn2gp.tune.ensemble import Ensemble
from dnn2gp.tune.minimise import minimise
from dnn2gp.tune.restarts import fit_restarts

from reference import brute_force


def build():
    return nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def data(scale=1.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 50, dtype=torch.float64)[:, None]
    return x, scale * (torch.sin(2 * x) + 0.3 * torch.randn(50, 1, generator=generator, dtype=torch.float64))


def by_scipy(network, x, y, delta, sigma):
    """The density of the transformed regression."""
    J, f, w = brute_force.jacobian(network, x)[:, 0], brute_force.outputs(network, x), brute_force.flat_weights(network)
    outputs = J @ w - (f - y)[:, 0]
    covariance = J @ J.T / delta + sigma**2 * torch.eye(len(y)).double()
    return multivariate_normal(torch.zeros(len(y)).numpy(), covariance.numpy()).logpdf(outputs.numpy())


@pytest.mark.slow
def test_the_evidence_is_that_of_the_network_and_no_neighbour_has_a_larger_one():
    """Other λ = δσ², trained on from the minimum, and other σ: none is better by more than the last step allows."""
    x, y = data()
    found = fit_restarts(build, x, y, GaussianLikelihood(), restarts=3)
    assert found.settled
    delta, sigma = found.prior_precision, found.likelihood.sigma.item()
    assert found.evidence == pytest.approx(by_scipy(found.network, x, y, delta, sigma), rel=1e-8)
    assert sigma == pytest.approx(0.3, rel=0.25)
    for change in (0.8, 1.25):  # σ alone, at these weights: δσ² stays
        assert by_scipy(found.network, x, y, delta / change**2, sigma * change) < found.evidence
    for change in (0.25, 4.0):
        product = torch.tensor([delta * sigma**2 * change], dtype=torch.float64)
        ensemble = Ensemble(build(), x[None], y[None], GaussianLikelihood(1.0), product)
        weights = minimise(ensemble, brute_force.flat_weights(found.network)[None]).weights
        best = (2 * ensemble.loss(weights) / len(y)).sqrt().item()
        other = brute_force.with_weights(build(), weights[0])
        assert by_scipy(other, x, y, product.item() / best**2, best) < found.evidence + 0.1


def test_sigma_has_its_closed_form_at_the_end():
    """σ² = (‖y − f‖² + λ wᵀw) / N at the minimum."""
    x, y = data()
    found = fit_restarts(build, x, y, GaussianLikelihood(), restarts=2)
    sigma, w = found.likelihood.sigma.item(), brute_force.flat_weights(found.network)
    total = (y - brute_force.outputs(found.network, x)).square().sum() + found.prior_precision * sigma**2 * w @ w
    assert sigma**2 == pytest.approx(total.item() / len(y), rel=1e-9)


@pytest.mark.slow
def test_units_of_the_targets_do_not_matter():
    """σ goes with the targets. (First weights do not, so that another minimum may be found: not to the last digit.)"""
    for scale in (0.1, 10.0):
        found = fit_restarts(build, *data(scale), GaussianLikelihood(), restarts=3)
        assert found.settled
        assert not found.at_edge
        assert found.likelihood.sigma.item() == pytest.approx(0.3 * scale, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("given", [0.2, 5.0])
def test_a_delta_or_a_sigma_that_is_given_stays(given):
    x, y = data()
    found = fit_restarts(build, x, y, GaussianLikelihood(), prior_precision=given, restarts=2)
    assert found.prior_precision == pytest.approx(given, rel=1e-12)
    assert found.likelihood.sigma.item() == pytest.approx(0.3, rel=0.3)
    known = fit_restarts(build, x, y, GaussianLikelihood(0.1 * given), restarts=2)
    assert known.likelihood.sigma.item() == 0.1 * given
    both = fit_restarts(build, x, y, GaussianLikelihood(0.3), prior_precision=given, restarts=2)
    assert (both.prior_precision, both.rounds, both.settled) == (pytest.approx(given, rel=1e-12), 1, True)


def test_noise_alone_leaves_no_network():
    """Targets without anything to learn: the evidence lets the weights vanish, and σ is their spread."""
    x = torch.linspace(-2, 2, 80, dtype=torch.float64)[:, None]
    y = torch.randn(80, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = fit_restarts(build, x, y - y.mean(), GaussianLikelihood(), restarts=3)
    assert found.likelihood.sigma.item() == pytest.approx(y.std(correction=0).item(), rel=0.05)
    assert brute_force.outputs(found.network, x).abs().max() < 0.5 * y.std()
    assert found.at_edge


def test_targets_without_noise_are_at_the_edge():
    x, _ = data()
    found = fit_restarts(build, x, torch.zeros_like(x), GaussianLikelihood(), restarts=2)
    assert found.at_edge
    assert found.likelihood.sigma.item() == pytest.approx(1e-4)


@pytest.mark.slow
def test_classes():
    x, y = data()

    def two():
        return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 2)).double()

    found = fit_restarts(two, x, (y[:, 0] > 0).long(), CategoricalLikelihood(), restarts=2)
    assert found.settled
    fixed = [
        fit_restarts(two, x, (y[:, 0] > 0).long(), CategoricalLikelihood(), prior_precision=delta, restarts=2)
        for delta in (found.prior_precision / 20, found.prior_precision * 20)
    ]
    assert all(each.evidence < found.evidence for each in fixed)


def test_what_means_nothing_is_refused():
    with pytest.raises(InputError, match="restarts"):
        fit_restarts(build, *data(), GaussianLikelihood(), restarts=0)


@pytest.mark.parametrize("limit", ["DENSE_WEIGHTS", "DENSE_OPERATIONS"])
def test_networks_with_costly_gauss_newton_steps_are_trained_with_lbfgs(limit: str, monkeypatch: pytest.MonkeyPatch):
    """Many weights are one reason, and many sites another: 2 M P² operations per step."""
    x, y = data()
    small, reached = fit_restarts(build, x, y, GaussianLikelihood(), restarts=1, max_rounds=1), []
    monkeypatch.setattr(restarts, limit, {"DENSE_WEIGHTS": 18, "DENSE_OPERATIONS": 2 * 50 * 19**2 - 1}[limit])
    monkeypatch.setattr(restarts, "fit_large", lambda *_: reached.append(limit) or small)
    fit_restarts(build, x, y, GaussianLikelihood(), restarts=1, max_rounds=1)
    assert reached == [limit]
    monkeypatch.setattr(restarts, limit, {"DENSE_WEIGHTS": 19, "DENSE_OPERATIONS": 2 * 50 * 19**2}[limit])
    fit_restarts(build, x, y, GaussianLikelihood(), restarts=1, max_rounds=1)
    assert reached == [limit]
