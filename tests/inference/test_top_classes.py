"""The most probable of many classes: against the covariance of all of them, in closed form and by plain Monte Carlo."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dnn2gp import (
    Calibration,
    CategoricalLikelihood,
    FunctionSpace,
    GaussianLikelihood,
    Iterative,
    Kronecker,
    LinearisedMode,
    Predictive,
    TopClasses,
    TopPredictive,
    WeightSpace,
    convert,
)
from dnn2gp.inference.averages import averages
from dnn2gp.inference.split import Split, excess, functionals, split_of
from dnn2gp.inference.top_classes import most_probable
from dnn2gp.support.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.CautiousWarning")
K, DELTA = 30, 1.0


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def data(count=120, seed=0):
    x = randn(count, 5, seed=seed)
    return x, (x @ randn(5, K, seed=9)).argmax(1)


@pytest.fixture(scope="module")
def trained():
    """A network that tells 30 classes apart."""
    x, y = data()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, K)).double()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module


@pytest.fixture(scope="module")
def gp(trained):
    return convert(trained, data(), CategoricalLikelihood(), DELTA, mean=LinearisedMode())


def calibrated(gp, scale, temperature=1.0):
    return replace(gp, calibration=Calibration(scale, temperature, scores=scale))


def covariance_of(mean, classes, whole):
    """Cov(f_T, g), g = Σ_{j∈R} w_j f_j, written out for one input."""
    others = [j for j in range(len(mean)) if j not in classes.tolist()]
    U = torch.zeros(len(mean), len(classes) + 1, dtype=mean.dtype)
    for column, own in enumerate(classes.tolist()):
        U[own, column] = 1
    U[others, -1] = mean[others].softmax(0)
    return U.T @ whole @ U


@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace(), WeightSpace(Kronecker())])
@pytest.mark.parametrize("count", [1, 12, K - 1])
def test_covariance_is_that_of_all_classes(trained, inference, count):
    gp = convert(trained, data(40), CategoricalLikelihood(), DELTA, inference=inference, mean=LinearisedMode())
    x = data(7, seed=3)[0]
    full, top = gp.predict(x), gp.predict(x, classes=TopClasses(count))
    assert isinstance(top, TopPredictive)
    assert top.classes.shape == (7, count)
    torch.testing.assert_close(top.latent_mean, full.latent_mean)
    for n in range(7):
        assert torch.equal(top.classes[n], full.latent_mean[n].argsort(descending=True)[:count])
        expected = covariance_of(full.latent_mean[n], top.classes[n], full.latent_covariance[n])
        torch.testing.assert_close(top.latent_covariance[n], expected, rtol=1e-8, atol=1e-10)


def test_iterative_covariance_with_all_directions(trained):
    exact, iterative = (
        convert(trained, data(40), CategoricalLikelihood(), DELTA, inference=inference, mean=LinearisedMode())
        for inference in (WeightSpace(), Iterative(rank=400, samples=16))
    )
    x = data(7, seed=3)[0]
    found, expected = (each.predict(x, classes=TopClasses(4)) for each in (iterative, exact))
    torch.testing.assert_close(found.latent_covariance, expected.latent_covariance, rtol=1e-5, atol=1e-7)
    assert isinstance(found, TopPredictive)
    assert found.latent_covariance_error is not None


def test_all_classes_are_the_usual_prediction(gp):
    x = data(7, seed=3)[0]
    found = gp.predict(x, classes=TopClasses(K))
    assert isinstance(found, Predictive)
    assert torch.equal(found.probabilities, gp.predict(x).probabilities)


def test_all_but_one_class_are_exact_up_to_the_points(gp):
    """With K − 1 classes there is no approximation, but the points of the average are other ones."""
    x, y = data(50, seed=3)
    own = calibrated(gp, 0.1, 1.2)
    full, top = own.predict(x), own.predict(x, classes=TopClasses(K - 1))
    assert isinstance(top, TopPredictive)
    assert top.split.variance.abs().max() < 1e-12
    torch.testing.assert_close(top.probabilities, full.probabilities, rtol=0, atol=3e-3)
    torch.testing.assert_close(top.log_prob(y), full.log_prob(y), rtol=0, atol=2e-2)
    torch.testing.assert_close(top.entropy, full.entropy, rtol=0, atol=5e-3)
    torch.testing.assert_close(top.mutual_information, full.mutual_information, rtol=0, atol=5e-3)


@pytest.mark.parametrize(
    ("scale", "count", "error"), [(0.01, 12, 5e-4), (0.1, 12, 4e-3), (0.1, 5, 0.02), (1.0, 12, 0.1)]
)
def test_twelve_of_thirty_classes(gp, scale, count, error):
    """The error of a probability at the scales that calibrations have, and with the exact posterior."""
    x = data(150, seed=3)[0]
    own = calibrated(gp, scale)
    full, top = own.predict(x).probabilities, own.predict(x, classes=TopClasses(count)).probabilities
    torch.testing.assert_close(top.sum(1), torch.ones(150, dtype=torch.float64))
    assert (top - full).abs().max() < error
    plugin = own.predict(x).latent_mean.softmax(1)
    assert (top - full).abs().sum(1).mean() < 0.4 * (plugin - full).abs().sum(1).mean()


def test_answers_belong_together(gp):
    x, y = data(20, seed=3)
    top = calibrated(gp, 0.1, 1.3).predict(x, classes=TopClasses(3))
    assert isinstance(top, TopPredictive)
    p = top.probabilities
    assert 0 < (top.classes == y[:, None]).any(1).sum() < 20  # labels inside and outside of T
    torch.testing.assert_close(top.log_prob(y), p.gather(1, y[:, None])[:, 0].log())
    torch.testing.assert_close(top.max_probability, p.amax(1))
    scored = top.scored.probabilities
    torch.testing.assert_close(top.entropy, -(scored * scored.log()).sum(1))
    torch.testing.assert_close(top.mutual_information, top.entropy - top.expected_entropy)
    torch.testing.assert_close(top.mean, calibrated(gp, 0.1, 1.3).predict(x).mean)
    torch.testing.assert_close(top.calibrated.probabilities, p)
    torch.testing.assert_close(top.uncalibrated.latent_mean, 1.3 * top.latent_mean)


def test_a_constant_added_to_all_logits_changes_nothing():
    mean, root = randn(1, 10), randn(1, 10, 10, seed=1)
    covariance = root @ root.mT
    classes = most_probable(mean, 4)
    U = functionals(mean, classes)
    found = []
    for constant in (0.0, 50.0):
        own, split = split_of(U.mT @ (covariance + constant) @ U, classes)
        found.append(averages(CategoricalLikelihood(), mean, own, 2048, split))
    torch.testing.assert_close(found[0].log_prob(torch.tensor([7])), found[1].log_prob(torch.tensor([7])))


def test_probes_estimate_the_variance_within_the_others():
    """For independent logits of variance 2, w_j-weighted, Var(f_j − g) is 2 (1 − 2 w_j + Σ w²)."""
    mean, classes = randn(400, 60), torch.arange(5).expand(400, 5)
    U = functionals(mean, classes)
    _, split = split_of(2 * U.mT @ U, classes)
    w = mean[:, 5:].softmax(1)
    expected = 2 * (1 - w.square().sum(1))
    assert ((split.variance / expected).mean() - 1).abs() < 0.1
    assert (split.variance / expected).std() < 0.25


@pytest.mark.parametrize("variance", [0.1, 1.0, 3.0, 30.0])
def test_excess_against_monte_carlo(variance):
    """E log Σ_j d_j / n of 500 independent logits."""
    draws = randn(4000, 500) * variance**0.5
    expected = (draws.logsumexp(1) - math.log(500)).mean()
    found = excess(torch.tensor([variance], dtype=torch.float64), torch.tensor([math.log(500)], dtype=torch.float64))
    assert abs(found.item() - expected) < 0.02 + 0.2 * min(1.0, variance / 10) * expected


def test_excess_has_a_gradient_at_zero():
    v = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    excess(v, torch.tensor([0.0, 1.0], dtype=torch.float64)).sum().backward()
    assert v.grad is not None
    assert torch.equal(v.grad, torch.full((2,), 0.5, dtype=torch.float64))


def test_label_is_among_the_classes():
    mean = randn(6, 10)
    labels = mean.argsort(1, descending=True)[:, [0, 2, 3, 5, 8, 9]].diagonal()
    found = most_probable(mean, 4, labels)
    assert bool((found == labels[:, None]).any(1).all())
    assert torch.equal(found[:, 0], mean.argmax(1))
    assert all(len(set(row.tolist())) == 4 for row in found)


def test_gradient_with_respect_to_inputs(gp):
    x = data(3, seed=3)[0]
    own = calibrated(gp, 0.1)

    def probability(x):
        return own.predict(x, classes=TopClasses(5)).probabilities.square().sum()

    given = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(probability(given), given)
    step = 1e-5 * torch.eye(15, dtype=torch.float64)[4].reshape(3, 5)
    slope = (probability(x + step) - probability(x - step)) / 2e-5
    assert gradient.flatten()[4].item() == pytest.approx(slope.item(), rel=1e-4)


def test_what_makes_no_sense_is_refused(gp):
    x = data(3)[0]
    with pytest.raises(InputError, match="num_classes"):
        TopClasses(0)
    line = nn.Linear(5, 2).double()
    regression = convert(line, (x, line(x).detach() + 0.1), GaussianLikelihood(0.1), 1.0)
    with pytest.raises(InputError, match="classes"):
        regression.predict(x, classes=TopClasses(1))


def test_split_of_some_inputs():
    split = Split(torch.arange(6).reshape(3, 2), randn(3).square())
    found = split.each(lambda tensor: tensor[1:]).scaled(4.0)
    assert found.classes.tolist() == [[2, 3], [4, 5]]
    torch.testing.assert_close(found.variance, 4 * split.variance[1:])
