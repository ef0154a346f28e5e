"""Iterative inference against explicit matrices: exact with a basis of all weights, within its error otherwise."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from dnn2gp import CategoricalLikelihood, GaussianLikelihood, Iterative, convert, load, save
from dnn2gp.inference import GaussNewtonStep, LinearisedMode, NetworkOutput
from dnn2gp.support.errors import InputError, MemoryBudgetError

from problems import KINDS, problem
from reference import brute_force, linearised

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
WHOLE = Iterative(rank=100)
"""A basis of all weights of the small problems."""


def _converted(case, inference=WHOLE, **settings):
    return convert(case.module, (case.x, case.y), case.likelihood, case.delta, inference=inference, **settings)


def _dense(case):
    """J at the test inputs, Σ̃ and the gradient, by explicit matrices at the weights."""
    J, r, Lam = case.parts()
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + case.delta.diag()
    gradient = torch.einsum("nkp,nk->p", J, r) + case.delta * case.weights
    return brute_force.jacobian(case.module, case.x_test), torch.linalg.inv(precision), gradient


@pytest.mark.parametrize("kind", KINDS)
def test_a_basis_of_all_weights_is_exact(kind):
    """Covariances, the mean, the log-determinant and the variances of the weights, with one δ per weight."""
    case = problem(kind, 9)
    J, covariance, gradient = _dense(case)
    gp = _converted(case, mean=GaussNewtonStep())
    found = gp.predict(case.x_test)
    torch.testing.assert_close(found.latent_covariance, J @ covariance @ J.mT, rtol=1e-8, atol=1e-10)
    assert found.latent_covariance_error.max() < 1e-8
    expected = brute_force.outputs(case.module, case.x_test) - J @ covariance @ gradient
    torch.testing.assert_close(found.latent_mean, expected, rtol=1e-7, atol=1e-7)
    joint = torch.einsum("nkp,pq,mlq->nkml", J, covariance, J)
    own = gp.covariance(case.x_test)
    for i in range(len(J)):
        torch.testing.assert_close(own[i, :, i], joint[i, :, i], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(gp.inference.weight_variances(), covariance.diagonal(), rtol=1e-7, atol=1e-9)
    complexity = 0.5 * (-torch.logdet(covariance) - case.delta.log().sum())
    assert gp.evidence().complexity == pytest.approx(complexity.item(), rel=1e-8)
    assert gp.evidence().error < 1e-8
    other = replace(gp, inference=gp.inference)
    assert other.inference.report().rank <= len(case.weights)


@pytest.mark.parametrize("kind", ["bernoulli", "categorical", "poisson"])
def test_the_mode_and_leave_one_out(kind):
    case = problem(kind, 12)
    f = brute_force.outputs(case.module, case.x)
    J = brute_force.jacobian(case.module, case.x)
    theta = linearised.mode(J, f, case.weights, case.y, case.loss, case.delta)
    gp = _converted(case, mean=LinearisedMode())
    torch.testing.assert_close(gp.inference.mean, theta, rtol=1e-6, atol=1e-7)
    exact = convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=LinearisedMode())
    torch.testing.assert_close(gp.leave_one_out().log_prob, exact.leave_one_out().log_prob, rtol=1e-6, atol=1e-7)


@pytest.fixture(scope="module")
def classifier():
    """A network of 503 weights, trained on 300 examples in five classes."""
    torch.manual_seed(0)
    x = torch.randn(400, 8)
    labels = (x[:, :5] + 0.5 * torch.randn(400, 5)).argmax(1)
    network = nn.Sequential(nn.Linear(8, 36), nn.Tanh(), nn.Linear(36, 5))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02, weight_decay=1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[:300]), labels[:300]).backward()
        optimizer.step()
    return network.double(), (x[:300].double(), labels[:300]), x[300:].double()


def _traces(prediction):
    return prediction.latent_covariance.diagonal(dim1=1, dim2=2).sum(1)


@pytest.mark.slow
def test_the_error_is_as_large_as_stated(classifier):
    """z-scores over test inputs and seeds; the log-determinant within its standard error."""
    network, data, x = classifier
    exact = convert(network, data, CategoricalLikelihood(), 1.0, mean=NetworkOutput())
    expected, log_det = _traces(exact.predict(x)), exact.inference.log_det_ratio().item()
    z, log_dets = [], []
    for seed in range(6):
        method = Iterative(rank=96, samples=48, tolerance=1e-3, seed=seed)
        gp = convert(network, data, CategoricalLikelihood(), 1.0, mean=NetworkOutput(), inference=method)
        found = gp.predict(x)
        assert bool((torch.linalg.eigvalsh(found.latent_covariance) > 0).all())
        z.append((_traces(found) / expected - 1) / found.latent_covariance_error)
        report = gp.inference.report()
        assert report.samples == 48
        assert not report.reached
        log_dets.append((report.log_det - log_det) / report.log_det_error)
    assert (torch.cat(z).abs() < 2).double().mean() > 0.9
    assert (torch.cat(z).abs() < 1).double().mean() < 0.8  # the error is not stated too large either
    assert sum(abs(each) < 2 for each in log_dets) >= 5


def test_fewer_samples_are_drawn_where_that_is_enough(classifier):
    network, data, x = classifier
    settings = {"prior_precision": 1.0, "mean": NetworkOutput()}
    rough = convert(network, data, CategoricalLikelihood(), inference=Iterative(rank=200, tolerance=0.3), **settings)
    fine = convert(network, data, CategoricalLikelihood(), inference=Iterative(rank=200, tolerance=0.03), **settings)
    assert rough.inference.report().samples == 16 < fine.inference.report().samples
    assert rough.inference.report().reached
    assert fine.predict(x).latent_covariance_error.median() < rough.predict(x).latent_covariance_error.median()


@pytest.mark.slow
def test_delta_by_the_evidence_is_near_the_exact_one(classifier):
    network, data, _ = classifier
    exact = convert(network, data, CategoricalLikelihood(), mean=NetworkOutput())
    found = convert(network, data, CategoricalLikelihood(), mean=NetworkOutput(), inference=Iterative(rank=256))
    delta = exact.tuning.best["prior_precision"]
    assert found.tuning.best["prior_precision"] == pytest.approx(delta, rel=0.15)
    assert abs(found.evidence().laplace - exact.evidence().laplace) < 0.02 * exact.evidence().complexity


def test_a_regression_has_its_exact_mean():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=generator, dtype=torch.float64)
    y = x[:, :2].sin() + 0.1 * torch.randn(80, 2, generator=generator, dtype=torch.float64)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 2)).double()
    exact = convert(network, (x, y), GaussianLikelihood(0.1), 1.0)
    found = convert(network, (x, y), GaussianLikelihood(0.1), 1.0, inference=Iterative(rank=40))
    gap = (found.predict(x).mean - exact.predict(x).mean) / exact.predict(x).std
    assert gap.abs().max() < 2e-3
    assert found.evidence().error > 0
    assert abs(float(found.evidence()) - float(exact.evidence())) < 3 * found.evidence().error
    more = (x[:5] + 1, y[:5])
    torch.testing.assert_close(
        found.condition(more).predict(x).mean, exact.condition(more).predict(x).mean, rtol=0, atol=1e-3
    )


def test_a_saved_posterior_predicts_the_same_without_the_data(classifier, tmp_path):
    network, data, x = classifier
    gp = convert(network, data, CategoricalLikelihood(), 1.0, inference=Iterative(rank=64, samples=20))
    save(gp, tmp_path / "gp.dnn2gp")
    loaded = load(tmp_path / "gp.dnn2gp", copy.deepcopy(network))
    torch.testing.assert_close(loaded.predict(x).probabilities, gp.predict(x).probabilities, rtol=0, atol=0)
    assert loaded.inference.report() == gp.inference.report()
    assert loaded.inference.curvature.passes == 0


def test_samples_of_functions_are_those_of_the_posterior(classifier):
    network, data, x = classifier
    gp = convert(network, data, CategoricalLikelihood(), 1.0, inference=Iterative(rank=64, samples=64, tolerance=1e-3))
    functions = gp.sample_functions(64, torch.Generator().manual_seed(0))
    values = functions(x)
    spread = (values - gp.predict(x).uncalibrated.latent_mean / gp.calibration.temperature).square().mean(0).sum(1)
    scale = gp.calibration.scale / gp.calibration.temperature**2
    ratio = spread / (scale * _traces(gp.predict(x)))
    assert 0.8 < ratio.median() < 1.25
    with pytest.raises(InputError, match="num_samples"):
        gp.sample_functions(65)


def test_the_same_seed_gives_the_same_numbers(classifier):
    network, data, x = classifier
    first, second, other = (
        convert(network, data, CategoricalLikelihood(), 1.0, inference=Iterative(rank=32, samples=16, seed=seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first.predict(x).latent_covariance, second.predict(x).latent_covariance)
    assert not torch.equal(first.predict(x).latent_covariance, other.predict(x).latent_covariance)


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"rank": 0}, "rank"), ({"samples": 0}, "samples"), ({"tolerance": 0.0}, "tolerance"), ({"seed": -1}, "seed")],
)
def test_bad_options_are_refused(settings, name):
    with pytest.raises(InputError, match=name):
        Iterative(**settings)


def test_what_does_not_fit_is_refused_before_it_starts(classifier):
    network, data, _ = classifier
    with pytest.raises(MemoryBudgetError, match=r"A basis of rank \d+ and 64 samples .*samples=32\)"):
        convert(network, data, CategoricalLikelihood(), 1.0, inference=Iterative(), memory_budget=1.5e6)


def test_fewer_samples_than_classes():
    torch.manual_seed(0)
    x, network = torch.randn(200, 6).double(), nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 10)).double()
    gp = convert(network, (x, x.argmax(1)), CategoricalLikelihood(), inference=Iterative(rank=32, samples=8))
    prediction = gp.predict(x[:50])
    assert bool((torch.linalg.eigvalsh(prediction.latent_covariance)[:, 0] > 0).all())
    assert gp.leave_one_out().log_prob.isfinite().all()
