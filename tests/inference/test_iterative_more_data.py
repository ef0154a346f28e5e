"""Iterative posteriors given more data, continued from those without them, against dense matrices of all the data."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from dnn2gp import GaussianLikelihood, Iterative, convert, load, save
from dnn2gp.inference import GaussNewtonStep, LinearisedMode
from dnn2gp.inference.iterative.basis import Basis
from dnn2gp.inference.iterative.more_data import Sum
from dnn2gp.inference.iterative.samples import Nystrom

from problems import KINDS, problem
from reference import brute_force, linearised

pytestmark = [
    pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning"),
    pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.CautiousWarning"),
]
WHOLE = Iterative(rank=100)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loaded", [False, True])
def test_with_all_directions_it_is_exact(kind, loaded, tmp_path):
    """Given two and then one more example: covariance, mean and log-determinant of all the data."""
    case = problem(kind, 9)
    x, y, step = case.x, case.y, GaussNewtonStep()
    gp = convert(case.module, (x[:6], y[:6]), case.likelihood, case.delta, inference=WHOLE, mean=step)
    if loaded:
        if kind == "custom":
            pytest.skip("its likelihood is not in the file")
        save(gp, tmp_path / "gp.dnn2gp")
        gp = load(tmp_path / "gp.dnn2gp", copy.deepcopy(case.module))
    gp = gp.condition((x[6:8], y[6:8])).condition((x[8:], y[8:]))
    J, r, Lam = case.parts()
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + case.delta.diag()
    covariance = torch.linalg.inv(precision)
    gradient = torch.einsum("nkp,nk->p", J, r) + case.delta * case.weights
    rows, found = brute_force.jacobian(case.module, case.x_test), gp.predict(case.x_test)
    torch.testing.assert_close(found.latent_covariance, rows @ covariance @ rows.mT, rtol=1e-8, atol=1e-10)
    assert found.latent_covariance_error.max() < 1e-7
    expected = brute_force.outputs(case.module, case.x_test) - rows @ covariance @ gradient
    torch.testing.assert_close(found.latent_mean, expected, rtol=1e-7, atol=1e-7)
    complexity = 0.5 * (torch.logdet(precision) - case.delta.log().sum())
    assert gp.evidence().complexity == pytest.approx(complexity.item(), rel=1e-8)
    assert gp.evidence().error < 1e-8


@pytest.mark.parametrize("kind", ["bernoulli", "categorical"])
def test_the_mode_of_all_the_data(kind):
    case = problem(kind, 12)
    x, y, mean = case.x, case.y, LinearisedMode()
    gp = convert(case.module, (x[:9], y[:9]), case.likelihood, case.delta, inference=WHOLE, mean=mean)
    f, J = brute_force.outputs(case.module, x), brute_force.jacobian(case.module, x)
    theta = linearised.mode(J, f, case.weights, y, case.loss, case.delta)
    torch.testing.assert_close(gp.condition((x[9:], y[9:])).inference.mean, theta, rtol=1e-6, atol=1e-7)


@pytest.fixture(scope="module")
def regression():
    """A network of 596 weights, 300 + 15 examples, and the dense posterior of all of them at 60 inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(375, 6, generator=generator, dtype=torch.float64)
    y = x[:, :2].sin() + 0.3 * torch.randn(375, 2, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 66), nn.Tanh(), nn.Linear(66, 2)).double()
    J = brute_force.jacobian(network, x)
    rows = J[:315].flatten(0, 1)
    precision = rows.T @ rows / 0.3**2 + torch.eye(rows.shape[1], dtype=torch.float64)
    covariance = J[315:] @ torch.linalg.inv(precision) @ J[315:].mT
    return network, (x, y), covariance.diagonal(dim1=1, dim2=2).sum(1), torch.logdet(precision).item()


def _continued(regression, seed, parts=(300, 315), **settings):
    network, (x, y), _, _ = regression
    method = Iterative(**{"rank": 128, "samples": 48, "tolerance": 1e-3, "seed": seed, **settings})
    gp = convert(network, (x[: parts[0]], y[: parts[0]]), GaussianLikelihood(0.3), 1.0, inference=method)
    for start, stop in pairwise(parts):
        gp = gp.condition((x[start:stop], y[start:stop]))
    return gp


def _z(gp, regression):
    """Errors in units of the stated ones: of variances, and of the log-determinant."""
    _, (x, _), expected, log_det = regression
    found, report = gp.predict(x[315:]), gp.inference.report()
    traces = found.latent_covariance.diagonal(dim1=1, dim2=2).sum(1)
    assert bool((torch.linalg.eigvalsh(found.latent_covariance) > 0).all())
    return (traces / expected - 1) / found.latent_covariance_error, (report.log_det - log_det) / report.log_det_error


@pytest.mark.slow
@pytest.mark.parametrize("parts", [(300, 315), (270, 285, 300, 315)])
def test_the_errors_are_as_large_as_stated(regression, parts):
    """After one and after three steps."""
    z, log_dets = [], []
    for seed in range(6):
        gp = _continued(regression, seed, parts)
        found = _z(gp, regression)
        z.append(found[0])
        log_dets.append(found[1])
    z = torch.cat(z)
    assert (z.abs() < 2).double().mean() > 0.9
    assert (z.abs() < 1).double().mean() < 0.8
    assert sum(abs(each) < 2.2 for each in log_dets) >= 5


def test_fewer_products_than_a_new_fit_needs(regression):
    """Five per cent more data, with the error of a fit of all the data."""
    settings = {"rank": 256, "samples": 64, "tolerance": 1e-5}
    fresh, report = (_continued(regression, 0, parts, **settings).inference.report() for parts in ((315,), (300, 315)))
    assert report.columns < 0.5 * fresh.columns, (report.columns, fresh.columns)
    assert report.covariance_error < 1.1 * fresh.covariance_error
    assert report.samples == fresh.samples == 64
    assert report.residual < 0.2


def test_much_new_data_is_a_new_fit(regression):
    """More than half of the old data: the numbers are those of a fit of all the data."""
    one, other = (_continued(regression, 0, parts) for parts in ((200, 315), (315,)))
    assert torch.equal(one.inference.samples.own, other.inference.samples.own)


def test_a_step_that_needs_more_samples_is_a_new_fit(regression):
    """Nine further examples for 16 samples that hardly reached the tolerance: the error stays below it."""
    first = _continued(regression, 0, (300,), tolerance=0.2)
    tolerance = first.inference.report().covariance_error * 1.001
    gp = _continued(regression, 0, (300, 315), tolerance=tolerance)
    assert gp.inference.report().covariance_error <= 1.25 * tolerance


P = 14


@pytest.mark.parametrize("most", [6, 100])
def test_the_coupling_of_continued_samples(most):
    """Cov θ̂₊ = Â₊⁻¹ and Cov(θ̂₊, θ₊) = A₊⁻¹ by many samples, with columns dropped and without."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    eye, rows, more, count = torch.eye(P, dtype=torch.float64), normal(30, P), normal(9, P), 200_000
    scales = torch.logspace(0.5, -1, P, dtype=torch.float64)
    rows, more = rows * scales, more * scales.flip(0)
    old, new = (
        Basis.of(lambda vectors, each=each: each.T @ (each @ vectors), normal(P, 2), 4, 2) for each in (rows, more)
    )
    nystrom = Nystrom.of(old)
    prior, pulled, added = normal(P, count), rows.T @ normal(30, count), more.T @ normal(9, count)
    A, total = eye + rows.T @ rows, Sum.of(nystrom, new, most)
    whole = A + more.T @ more
    below = total.nystrom().solve(eye)
    if most == 100:
        approximations = []
        for each, basis in ((rows, old), (more, new)):
            G, Q = each.T @ each, basis.vectors[:, : basis.rank]
            approximations.append(G @ Q @ torch.linalg.solve(Q.T @ G @ Q, Q.T @ G))
        torch.testing.assert_close(below, torch.linalg.inv(eye + sum(approximations)), rtol=1e-8, atol=1e-10)
    assert total.nystrom().root.shape[1] <= most
    assert torch.linalg.eigvalsh(below - torch.linalg.inv(whole))[0] > -1e-10
    guess = nystrom.solve(prior + old.projected(pulled))
    guess = total.nystrom().solve(total.right(guess, new.projected(added), generator))
    own = torch.linalg.solve(whole, prior + pulled + added)
    torch.testing.assert_close(guess @ guess.T / count, below, rtol=0, atol=0.015)
    torch.testing.assert_close(guess @ own.T / count, torch.linalg.inv(whole), rtol=0, atol=0.015)
