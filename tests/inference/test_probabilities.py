"""Class probabilities averaged over f, against quadrature, grids and samples."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.special import expit
from torch import Tensor, nn
from torch.autograd import gradcheck

from dnn2gp import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
    Predictive,
    convert,
)
from dnn2gp.inference.averaged_predictive import AveragedPredictive
from dnn2gp.inference.calibration import Calibration
from dnn2gp.inference.quasi_random import normal_points
from dnn2gp.support.errors import InputError, NotPositiveDefiniteError

from reference.averages import by_samples, integral, over_three_logits

close = torch.testing.assert_close
SOFTMAX, SIGMOID = CategoricalLikelihood(), BernoulliLikelihood()


def predictive(likelihood, mean: Tensor, covariance: Tensor, **settings) -> Predictive:
    return Predictive(likelihood, (mean.shape[1],), mean, torch.zeros_like(mean), covariance, **settings)


def problem(N: int, K: int, variance: float = 1.0, rank: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(K)
    root = torch.randn(N, K, rank or K, generator=generator, dtype=torch.float64)
    mean = 2 * torch.randn(N, K, generator=generator, dtype=torch.float64)
    return mean, root @ root.mT * (variance / (rank or K))


CASES = [(0.0, 0.0), (0.3, 0.5), (-2.0, 4.0), (5.0, 100.0), (-30.0, 1e4), (1.0, 1e4), (-20.0, 9.0), (40.0, 1e-4)]


@pytest.mark.parametrize(("mean", "variance"), CASES)
def test_one_logit(mean: float, variance: float):
    m, C = torch.tensor([[mean]], dtype=torch.float64), torch.tensor([[[variance]]], dtype=torch.float64)
    expected = integral(lambda f: float(expit(f)), mean, variance, -10, 0, 10)
    found = predictive(SIGMOID, m, C).probabilities
    assert found.shape == (1, 1)
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("mean", "variance"), CASES)
def test_two_classes(mean: float, variance: float):
    """A sigmoid of the difference, whatever the two logits have in common."""
    m = torch.tensor([[3.0, 3.0 + mean]], dtype=torch.float64)
    C = torch.tensor([[[0.25, -0.25], [-0.25, 0.25]]], dtype=torch.float64) * variance + 2.0
    expected = integral(lambda f: float(expit(f)), mean, variance, -10, 0, 10)
    found = predictive(SOFTMAX, m, C).probabilities
    close(found[0], torch.tensor([1 - expected, expected], dtype=torch.float64), rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize(("variance", "tolerance"), [(0.1, 5e-5), (1.0, 3e-4), (10.0, 1e-3), (100.0, 2e-3)])
def test_three_classes(variance: float, tolerance: float):
    """The tolerances are the errors of 2048 points; those of as many random samples reach 0.02."""
    mean, covariance = problem(5, 3, variance)
    found = predictive(SOFTMAX, mean, covariance).probabilities
    expected = torch.stack(
        [over_three_logits(m, C, lambda f: f.softmax(-1)) for m, C in zip(mean, covariance, strict=True)]
    )
    assert (found - expected).abs().max() < tolerance


@pytest.mark.slow
@pytest.mark.parametrize(("K", "rank"), [(10, 2), (10, 10), (30, 90)])
@pytest.mark.parametrize(("variance", "tolerance"), [(0.1, 1e-4), (1.0, 1e-3), (10.0, 5e-3)])
def test_many_classes(K: int, rank: int, variance: float, tolerance: float):
    mean, covariance = problem(2, K, variance, rank)
    found = predictive(SOFTMAX, mean, covariance).probabilities
    for own, m, C in zip(found, mean, covariance, strict=True):
        expected, error = by_samples(m, C, lambda f: f.softmax(-1))
        assert ((own - expected).abs() < tolerance + 5 * error).all()


@pytest.mark.parametrize("K", [2, 3, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_logits(K: int, dtype: torch.dtype):
    mean, covariance = problem(4, K)
    found = predictive(SOFTMAX, mean.to(dtype), torch.zeros_like(covariance)).probabilities
    assert found.dtype == dtype
    close(found, mean.to(dtype).double().softmax(-1).to(dtype), rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("K", [2, 3, 10])
def test_a_constant_added_to_all_logits_is_not_seen(K: int):
    mean, covariance = problem(4, K)
    shift = torch.linspace(-1, 1, K, dtype=torch.float64)
    common = 1e6 + 100 * (shift.unsqueeze(0) + shift.unsqueeze(1))
    found = predictive(SOFTMAX, (mean + 5).float(), covariance + common).probabilities
    close(found, predictive(SOFTMAX, mean.float(), covariance).probabilities, rtol=0, atol=1e-5 if K > 2 else 1e-6)


def test_rows_sum_to_one_and_do_not_depend_on_their_company():
    mean, covariance = problem(40, 10, 10.0)  # several chunks
    prediction = predictive(SOFTMAX, mean, covariance)
    whole = prediction.probabilities
    close(whole.sum(1), torch.ones(40, dtype=torch.float64), rtol=0, atol=1e-14)
    assert torch.equal(whole, prediction.probabilities)
    one = predictive(SOFTMAX, mean[17:18], covariance[17:18]).probabilities
    close(one, whole[17:18], rtol=1e-12, atol=1e-15)
    assert predictive(SOFTMAX, mean[:0], covariance[:0]).probabilities.shape == (0, 10)


def test_binary_outputs_keep_their_shape():
    mean, covariance = problem(3, 6)
    prediction = Predictive(SIGMOID, (2, 3), mean, torch.zeros_like(mean), covariance)
    each = [
        predictive(SIGMOID, mean[:, k : k + 1], covariance[:, k : k + 1, k : k + 1]).probabilities for k in range(6)
    ]
    close(prediction.probabilities, torch.cat(each, 1).reshape(3, 2, 3), rtol=1e-13, atol=0)
    assert prediction.max_probability.shape == prediction.entropy.shape == (3, 2, 3)


def test_points_that_were_made_in_inference_mode():
    mean, covariance = problem(2, 7)
    logit = mean[:, :1], covariance[:, :1, :1]
    normal_points.cache_clear()
    with torch.inference_mode(), torch.device("meta"):
        first = predictive(SOFTMAX, mean, covariance).probabilities, predictive(SIGMOID, *logit).probabilities
    mean.requires_grad_()
    again = predictive(SOFTMAX, mean, covariance).probabilities
    assert torch.equal(again, first[0])
    assert torch.autograd.grad(again[0, 0], mean)[0].isfinite().all()
    assert torch.equal(predictive(SIGMOID, *logit).probabilities, first[1])


def test_not_a_covariance():
    mean, covariance = problem(2, 3)
    with pytest.raises(NotPositiveDefiniteError):
        predictive(SOFTMAX, mean, -covariance).probabilities  # noqa: B018


@pytest.mark.parametrize("likelihood", [SIGMOID, SOFTMAX])
def test_closed_forms_are_differentiable(likelihood):
    mean, covariance = problem(3, 2)
    root = torch.linalg.cholesky(covariance).requires_grad_()

    def answers(m: Tensor, root: Tensor) -> tuple[Tensor, ...]:
        found = predictive(likelihood, m, root @ root.mT)
        return found.probabilities, found.mutual_information

    assert gradcheck(answers, (mean.requires_grad_(), root))


def test_gradients_of_three_classes():
    """Those of a fine grid, within the error of the points."""
    mean, covariance = problem(1, 3)
    weights = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64)
    given = mean.requires_grad_(), covariance.requires_grad_()
    found = torch.autograd.grad((predictive(SOFTMAX, *given).probabilities @ weights).sum(), given)
    dense = over_three_logits(mean[0], covariance[0], lambda f: f.softmax(-1)) @ weights
    for own, expected in zip(found, torch.autograd.grad(dense, given), strict=True):
        close(own, 0.5 * (expected + expected.mT) if own.ndim == 3 else expected, rtol=0, atol=3e-4)


def test_gradients_of_a_singular_covariance():
    """One random direction u: f = m + u z, whose average is an integral over a line."""
    mean, direction = problem(1, 4)[0], torch.tensor([1.0, 0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    covariance = torch.outer(direction, direction).unsqueeze(0)
    found = predictive(SOFTMAX, mean, covariance).probabilities[0, 1]
    z = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    expected = (mean + z.unsqueeze(1) * direction).softmax(-1)[:, 1] @ (-0.5 * z.square()).softmax(0)
    close(found, expected, rtol=0, atol=1e-4)
    pair = [torch.autograd.grad(each, direction)[0] for each in (found, expected)]
    close(pair[0], pair[1], rtol=0, atol=3e-4)


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
def test_predictions_are_differentiable():
    torch.manual_seed(0)
    x, labels = torch.randn(20, 2).double(), torch.arange(20) % 3
    gp = convert(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double(), (x, labels), SOFTMAX, 1.0)
    place = torch.tensor([[0.5, -1.0]], dtype=torch.float64, requires_grad=True)

    def answers(x: Tensor) -> Tensor:
        found = gp.predict(x)
        return torch.stack([found.probabilities[0, 0], found.entropy[0], found.mutual_information[0]])

    found = torch.autograd.functional.jacobian(answers, place)
    step = 1e-3 * torch.eye(2, dtype=torch.float64)
    with torch.no_grad():
        expected = [(answers(place + d) - answers(place - d)) / 2e-3 for d in step]
    assert isinstance(found, Tensor)
    close(found[:, 0], torch.stack(expected, 1), rtol=0, atol=2e-3)


def test_several_maps():
    """The average of the maps' probabilities."""
    mean, covariance = problem(3, 4)
    found = AveragedPredictive(SOFTMAX, (2,), mean, torch.zeros_like(mean), covariance)
    parts = slice(0, 2), slice(2, 4)
    each = [predictive(SOFTMAX, mean[:, p], covariance[:, p, p]) for p in parts]
    close(found.probabilities, (each[0].probabilities + each[1].probabilities) / 2, rtol=1e-14, atol=0)
    labels = torch.tensor([0, 1, 1])
    close(found.log_prob(labels).exp(), (each[0].log_prob(labels).exp() + each[1].log_prob(labels).exp()) / 2)
    close(found.expected_entropy, (each[0].expected_entropy + each[1].expected_entropy) / 2, rtol=1e-14, atol=0)
    close(found.entropy, torch.special.entr(found.probabilities).sum(1), rtol=1e-13, atol=0)


def test_a_calibration_is_a_scale_and_a_temperature():
    """Everything but the fields and the entropies is that of f ~ N(m/τ, a V/τ²)."""
    mean, covariance = problem(4, 3)
    shift = 0.1 * mean.flip(1)
    chosen = Calibration(scale=0.3, temperature=1.7)
    found = Predictive(SOFTMAX, (3,), mean, shift, covariance, calibration=chosen)
    expected = Predictive(SOFTMAX, (3,), mean / 1.7, shift / 1.7, 0.3 / 1.7**2 * covariance)
    for name in (
        "mean",
        "aleatoric",
        "epistemic",
        "variance",
        "std",
        "probabilities",
        "max_probability",
        "latent_mean",
    ):
        close(getattr(found, name), getattr(expected, name), rtol=1e-13, atol=1e-15)
    labels = torch.tensor([0, 1, 2, 0])
    close(found.log_prob(labels), expected.log_prob(labels), rtol=1e-13, atol=0)
    close(found.probit(), expected.probit(), rtol=1e-13, atol=0)
    close(found.delta(), expected.delta(), rtol=1e-13, atol=0)
    draws = [each.monte_carlo(10, torch.Generator().manual_seed(0)) for each in (found, expected)]
    close(draws[0], draws[1], rtol=1e-12, atol=1e-14)
    assert torch.equal(found.latent_covariance, covariance)
    assert torch.equal(found.outputs, mean)
    close(found.calibrated.latent_covariance, expected.latent_covariance, rtol=1e-15, atol=0)
    assert found.uncalibrated.calibration.is_identity
    maps = AveragedPredictive(SOFTMAX, (3,), mean, shift, covariance, calibration=chosen)
    close(maps.epistemic_covariance, found.epistemic_covariance, rtol=1e-13, atol=1e-15)
    close(maps.probabilities, found.probabilities, rtol=1e-14, atol=0)


def test_calibrated_noise():
    mean, covariance = problem(3, 2)
    found = predictive(GaussianLikelihood(0.5), mean, covariance, calibration=Calibration(2.0, noise=3.0))
    variance = 2 * covariance.diagonal(dim1=1, dim2=2)
    close(found.variance, variance + 1.5**2, rtol=1e-14, atol=0)
    close(found.mean, mean, rtol=0, atol=0)
    draws = found.sample(20_000, torch.Generator().manual_seed(0))
    assert ((draws.var(0) / found.variance - 1).abs() < 5 * math.sqrt(2 / 20_000)).all()


@pytest.mark.parametrize("name", ["scale", "temperature", "noise"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_calibrations(name: str, value: float):
    with pytest.raises(InputError, match=name):
        Calibration(**{name: value})


def test_calibrations_of_other_likelihoods():
    mean, covariance = problem(2, 2)
    assert Calibration(scale=0.0).scale == 0
    for name in ("temperature", "noise"):
        with pytest.raises(InputError, match=name):
            Calibration(**{name: 0.0})
    with pytest.raises(InputError, match="temperature"):
        predictive(GaussianLikelihood(1.0), mean, covariance, calibration=Calibration(temperature=2.0))
    with pytest.raises(InputError, match="noise"):
        predictive(SOFTMAX, mean, covariance, calibration=Calibration(noise=2.0))


@pytest.mark.parametrize("likelihood", [GaussianLikelihood(1.0), PoissonLikelihood()])
@pytest.mark.parametrize(
    "name", ["probabilities", "entropy", "expected_entropy", "mutual_information", "max_probability"]
)
def test_regressions_have_no_classes(likelihood, name: str):
    with pytest.raises(InputError, match="interval"):
        getattr(predictive(likelihood, *problem(2, 2)), name)
