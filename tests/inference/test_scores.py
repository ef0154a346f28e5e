"""Entropies, mutual information and log p(y), against quadrature, grids, samples and scipy's distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.special import entr, expit, log_expit
from torch import Tensor

from dnn2gp import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    CustomLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
    Predictive,
)
from dnn2gp.inference.averages import averages, log_average
from dnn2gp.inference.calibration import Calibration

from reference.averages import by_samples, integral, over_three_logits

close = torch.testing.assert_close
SOFTMAX, SIGMOID = CategoricalLikelihood(), BernoulliLikelihood()


def problem(N: int, K: int, variance: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(K)
    mean, root = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((N, K), (N, K, K)))
    return 2 * mean, root @ root.mT * (variance / K)


def predictive(likelihood, mean: Tensor, covariance: Tensor, **settings) -> Predictive:
    return Predictive(likelihood, (mean.shape[1],), mean, torch.zeros_like(mean), covariance, **settings)


def scalar(value: float) -> Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


CASES = [(0.0, 0.0), (0.3, 0.5), (-2.0, 4.0), (5.0, 100.0), (-30.0, 1e4), (12.0, 9.0)]


@pytest.mark.parametrize(("mean", "variance"), CASES)
def test_entropies_of_one_logit(mean: float, variance: float):
    found = predictive(SIGMOID, scalar(mean), scalar(variance).unsqueeze(0))
    p, q = (integral(lambda f, s=s: float(expit(s * f)), mean, variance, -10, 0, 10) for s in (1, -1))
    expected = integral(
        lambda f: float(-expit(f) * log_expit(f) - expit(-f) * log_expit(-f)), mean, variance, -10, 0, 10
    )
    assert found.entropy.item() == pytest.approx(float(entr(p) + entr(q)), rel=1e-11)
    assert found.expected_entropy.item() == pytest.approx(expected, rel=1e-11)
    assert found.mutual_information.item() == pytest.approx(float(entr(p) + entr(q)) - expected, rel=1e-8, abs=1e-13)
    assert found.max_probability.item() == pytest.approx(max(p, q), rel=1e-12)
    pair = torch.tensor([[0.0, mean]], dtype=torch.float64), torch.diag(torch.tensor([0.0, variance])).double()
    two = predictive(SOFTMAX, pair[0], pair[1].unsqueeze(0))
    close(two.entropy, found.entropy[:, 0], rtol=1e-7, atol=1e-13)
    close(two.expected_entropy, found.expected_entropy[:, 0], rtol=1e-7, atol=1e-13)


def test_entropies_of_three_classes():
    mean, covariance = problem(4, 3, 3.0)
    found = predictive(SOFTMAX, mean, covariance)

    def values(f: Tensor) -> Tensor:
        p = f.softmax(-1)
        return torch.cat([p, torch.special.entr(p).sum(-1, keepdim=True)], 1)

    for n in range(4):
        both = over_three_logits(mean[n], covariance[n], values)
        entropy, expected = torch.special.entr(both[:3]).sum(), both[3]
        close(found.entropy[n], entropy, rtol=0, atol=1e-3)
        close(found.expected_entropy[n], expected, rtol=0, atol=1e-3)
        close(found.mutual_information[n], entropy - expected, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_entropies_of_ten_classes():
    mean, covariance = problem(2, 10, 4.0)
    found = predictive(SOFTMAX, mean, covariance)
    for n in range(2):
        p, _ = by_samples(mean[n], covariance[n], lambda f: f.softmax(-1))
        expected, error = by_samples(mean[n], covariance[n], lambda f: torch.special.entr(f.softmax(-1)).sum(-1))
        assert abs(found.expected_entropy[n] - expected) < 5 * error + 2e-3
        assert abs(found.entropy[n] - torch.special.entr(p).sum()) < 5e-3


@pytest.mark.parametrize("likelihood", [SOFTMAX, SIGMOID])
@pytest.mark.parametrize("K", [2, 5])
def test_certain_logits_say_nothing_about_f(likelihood, K: int):
    mean, covariance = problem(20, K)
    certain = predictive(likelihood, mean, 0 * covariance)
    assert (certain.mutual_information >= 0).all()
    assert certain.mutual_information.max() < 1e-14
    close(certain.entropy, certain.expected_entropy, rtol=1e-13, atol=1e-15)
    unsure = predictive(likelihood, mean, 1e-6 * covariance)
    assert (unsure.mutual_information >= 0).all()
    assert (predictive(likelihood, mean.float(), covariance).mutual_information > 0).all()


def test_entropies_ignore_the_calibration_and_the_largest_probability_does_not():
    mean, covariance = problem(5, 3)
    exact = predictive(SOFTMAX, mean, covariance)
    found = predictive(SOFTMAX, mean, covariance, calibration=Calibration(0.1, 0.8))
    sharp = predictive(SOFTMAX, mean / 0.8, 0.1 / 0.8**2 * covariance)
    for name in ("entropy", "expected_entropy", "mutual_information"):
        assert torch.equal(getattr(found, name), getattr(exact, name))
        close(getattr(found.calibrated, name), getattr(sharp, name), rtol=1e-12, atol=1e-14)
    close(found.max_probability, sharp.probabilities.amax(1), rtol=1e-13, atol=0)
    assert torch.equal(found.uncalibrated.max_probability, exact.max_probability)


def test_gaussian_log_prob():
    mean, covariance = problem(4, 3)
    sigma = np.array([0.1, 1.0, 2.0])
    y = mean + 0.5
    found = predictive(GaussianLikelihood(torch.from_numpy(sigma)), mean, covariance).log_prob(y)
    for n in range(4):
        total = covariance[n].numpy() + np.diag(sigma**2)
        expected = scipy.stats.multivariate_normal(mean[n].numpy(), total).logpdf(y[n].numpy())  # pyright: ignore
        assert found[n].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("K", [2, 4])
def test_log_prob_of_classes(K: int):
    mean, covariance = problem(6, K)
    found = predictive(SOFTMAX, mean, covariance)
    labels = torch.arange(6) % K
    close(found.log_prob(labels), found.probabilities.gather(1, labels[:, None])[:, 0].log(), rtol=1e-12, atol=0)
    far = torch.zeros(1, K, dtype=torch.float64)
    far[0, 0] = 5000.0
    impossible = predictive(SOFTMAX, far, covariance[:1]).log_prob(torch.tensor([1]))
    assert -5000 < impossible.item() < -4900
    single = predictive(SOFTMAX, mean.float(), covariance)
    assert single.log_prob(labels).dtype == torch.float32


@pytest.mark.parametrize(("mean", "variance"), [*CASES, (-300.0, 25.0), (-40.0, 30.0)])
@pytest.mark.parametrize("label", [0.0, 1.0, 0.3])
def test_log_prob_of_one_logit(mean: float, variance: float, label: float):
    """For a soft label 0.3, exp of the negative cross-entropy is averaged."""

    def log_value(f: float) -> float:
        return float(label * log_expit(f) + (1 - label) * log_expit(-f))

    found = predictive(SIGMOID, scalar(mean), scalar(variance).unsqueeze(0)).log_prob(scalar(label)).item()
    peak = mean + (label * variance if mean < 0 else (label - 1) * variance)  # of a Gaussian tail
    top = log_value(mean)
    expected = integral(lambda f: math.exp(min(log_value(f) - top, 700)), mean, variance, peak, -10, 0, 10)
    assert found == pytest.approx(top + math.log(expected), rel=1e-5 if label == 0.3 else 1e-10, abs=1e-12)


@pytest.mark.parametrize(
    ("mean", "variance", "count"),
    [(1.0, 0.5, 2), (3.0, 4.0, 0), (7.0, 1e-4, 1100), (2.0, 1.0, 5000), (40.0, 100.0, 1)],
)
def test_log_prob_of_counts(mean: float, variance: float, count: int):
    found = predictive(PoissonLikelihood(), scalar(mean), scalar(variance).unsqueeze(0)).log_prob(scalar(count)).item()
    peak = math.log(count) if count else mean
    breaks = [peak + c / math.sqrt(count + 1) for c in (-8, -2, 0, 2, 8)]
    expected = integral(lambda f: float(scipy.stats.poisson.pmf(count, math.exp(f))), mean, variance, *breaks)
    assert found == pytest.approx(math.log(expected), rel=1e-10)


def test_log_prob_of_a_custom_loss():
    constant = torch.tensor(math.log(math.pi), dtype=torch.float64)
    likelihood = CustomLikelihood(lambda f, y: torch.log(torch.cosh(f - y)).sum(), log_normaliser=lambda f, y: constant)
    found = predictive(likelihood, scalar(1.0), scalar(2.0).unsqueeze(0)).log_prob(scalar(-0.5)).item()
    expected = integral(lambda f: float(scipy.stats.hypsecant.pdf(-0.5 - f)), 1.0, 2.0, -0.5)
    assert found == pytest.approx(math.log(expected), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "y", "log_prob"),
    [
        (SIGMOID, [1.0, 0.0, 1.0], lambda f, y: -torch.nn.functional.softplus((1 - 2 * y) * f).sum(-1)),
        (PoissonLikelihood(), [1.0, 0.0, 3.0], lambda f, y: (y * f - f.exp() - torch.lgamma(y + 1)).sum(-1)),
    ],
)
def test_log_prob_of_several_outputs(likelihood, y, log_prob):
    """The joint probability: the outputs of one input share their uncertainty."""
    mean, covariance = problem(1, 3)
    targets = torch.tensor([y], dtype=torch.float64)
    expected, error = by_samples(mean[0], covariance[0], lambda f: log_prob(f, targets).exp())
    found = predictive(likelihood, mean, covariance).log_prob(targets).exp()
    assert abs(found - expected) < 5 * error + 2e-3 * expected


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (SOFTMAX, torch.tensor([0, 2])),
        (GaussianLikelihood(0.7), torch.zeros(2, 3).double()),
        (SIGMOID, torch.ones(2, 3).double()),
    ],
)
def test_scaled_averages(likelihood, y: Tensor):
    """One root serves all (a, τ): values are those of scaled covariances, and gradients those of finite differences."""
    mean, covariance = problem(2, 3)
    found = averages(likelihood, mean, covariance)

    def value(a: float | Tensor, tau: float | Tensor) -> Tensor:
        return found.scaled(a, tau).log_prob(y).sum()

    close(value(0.4, 1.5), log_average(likelihood, mean / 1.5, 0.4 / 1.5**2 * covariance, y).sum(), rtol=1e-12, atol=0)
    given = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in (0.4, 1.5)]
    gradient = torch.autograd.grad(value(*given), given)
    numeric = [value(0.4 + 1e-5, 1.5) - value(0.4 - 1e-5, 1.5), value(0.4, 1.5 + 1e-5) - value(0.4, 1.5 - 1e-5)]
    close(torch.stack(gradient), torch.stack(numeric) / 2e-5, rtol=1e-7, atol=1e-9)


def test_scaled_noise():
    mean, covariance = problem(2, 1)
    found = averages(GaussianLikelihood(0.5), mean, covariance).scaled(2.0, noise=3.0).log_prob(0 * mean)
    expected = scipy.stats.norm.logpdf(0, mean[:, 0].numpy(), np.sqrt(2 * covariance[:, 0, 0].numpy() + 1.5**2))
    close(found, torch.from_numpy(expected), rtol=1e-12, atol=0)
