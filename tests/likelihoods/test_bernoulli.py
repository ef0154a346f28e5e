"""Bernoulli: saturated logits, soft labels, the probit approximation, and refusals."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from dnn2gp.likelihoods import BernoulliLikelihood
from dnn2gp.support.errors import InputError, NotPositiveDefiniteError

from reference import likelihoods as oracle

LIKELIHOOD = BernoulliLikelihood()


def test_log_prob_against_scipy() -> None:
    f = torch.linspace(-4, 4, 12, dtype=torch.float64).reshape(4, 3)
    y = (torch.arange(12).reshape(4, 3) % 2).double()
    assert_close(LIKELIHOOD.log_prob(f, y), oracle.scipy_bernoulli_log_prob(f, y), rtol=1e-12, atol=1e-13)


def test_saturated_logits_in_float32_keep_their_relative_accuracy() -> None:
    f = torch.tensor([0.0, 1e-4, 3.3, 17.3, -17.3, 40.7, -40.7, 80.1, -80.1]).unsqueeze(1)
    root = LIKELIHOOD.noise_precision_root(f).squeeze(-1)
    assert_close(root.double(), oracle.root_logistic_variance(f), rtol=5e-7, atol=0)
    variance = oracle.root_logistic_variance(f).square()
    assert_close(LIKELIHOOD.noise_precision(f).squeeze(-1).double(), variance, rtol=1e-6, atol=0)
    assert_close(LIKELIHOOD.covariance(f).squeeze(-1).double(), variance, rtol=1e-6, atol=0)
    p = torch.sigmoid(f)
    assert float(((p * (1 - p)).double() / variance - 1).abs().max()) > 0.01


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_saturated_residual_and_loss_in_float32(label: float) -> None:
    f = torch.tensor([17.3, 40.7, 80.1, -17.3, -40.7, -80.1]).unsqueeze(1)
    y = torch.full_like(f, label)
    margin = (f if label == 1.0 else -f).double()
    assert_close(LIKELIHOOD.loss(f, y).double(), torch.nn.functional.softplus(-margin, threshold=800).squeeze(1))
    sign = -1.0 if label == 1.0 else 1.0
    assert_close(LIKELIHOOD.residual(f, y).double(), sign * torch.sigmoid(-margin), rtol=1e-6, atol=0)


def test_extreme_logits_stay_finite() -> None:
    f = torch.tensor([[-1e4], [1e4]])
    y = torch.tensor([[1.0], [0.0]])
    assert_close(LIKELIHOOD.loss(f, y), torch.tensor([1e4, 1e4]))
    assert_close(LIKELIHOOD.loss(f, 1 - y), torch.zeros(2))
    assert_close(LIKELIHOOD.noise_precision(f), torch.zeros(2, 1, 1))


def test_soft_labels() -> None:
    f = torch.tensor([[0.4, -1.3]], dtype=torch.float64)
    y = torch.tensor([[0.3, 0.9]], dtype=torch.float64)
    checked = LIKELIHOOD.check_targets(y, 1, 2, torch.float64)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(f, y, reduction="sum")
    assert_close(LIKELIHOOD.loss(f, checked).squeeze(), expected)
    assert_close(LIKELIHOOD.residual(f, checked), torch.sigmoid(f) - y)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 1, 1)])
def test_targets_of_any_real_dtype_are_accepted(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    targets = torch.tensor([0, 1, 1, 0]).to(dtype).reshape(shape)
    checked = LIKELIHOOD.check_targets(targets, 4, 1, torch.float32)
    assert_close(checked, torch.tensor([[0.0], [1.0], [1.0], [0.0]]), rtol=0, atol=0)


@pytest.mark.parametrize("value", [-1.0, 2.0, float("nan"), float("inf")])
def test_targets_outside_the_unit_interval_are_refused(value: float) -> None:
    targets = torch.tensor([0.0, 1.0, value, value])
    message = rf"Bernoulli targets in \[0, 1\]; got {value} in row 2 .*\(4, 1\).*Code the classes as 0 and 1"
    with pytest.raises(InputError, match=message):
        LIKELIHOOD.check_targets(targets, 4, 1, torch.float32)


def test_integer_labels_outside_are_refused() -> None:
    with pytest.raises(InputError, match=r"got -1 in row 1 .*torch.int64"):
        LIKELIHOOD.check_targets(torch.tensor([1, -1]), 2, 1, torch.float32)


def test_wrong_columns_and_complex_targets_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected 3 target value\(s\) per example, .*got 1 "):
        LIKELIHOOD.check_targets(torch.zeros(4), 4, 3, torch.float32)
    with pytest.raises(InputError, match=r"expected real targets .*torch.complex64.*targets.real"):
        LIKELIHOOD.check_targets(torch.zeros(4, dtype=torch.complex64), 4, 1, torch.float32)


@pytest.mark.parametrize("mean", [-3.0, 0.0, 0.5, 2.0])
@pytest.mark.parametrize("variance", [0.0, 0.1, 1.0, 10.0])
def test_probit_is_near_the_expectation(mean: float, variance: float) -> None:
    """The approximation's own error is below 0.02; it is exact without variance and at mean 0."""
    f = torch.tensor([[mean, 0.0]], dtype=torch.float64)
    covariance = torch.tensor([[[variance, 0.05], [0.05, variance]]], dtype=torch.float64)
    probit = LIKELIHOOD.probit(f, covariance)
    exact = oracle.expectation_of_sigmoid(mean, variance)
    assert abs(float(probit[0, 0]) - exact) < (1e-12 if variance == 0 else 0.02)
    assert float(probit[0, 1]) == 0.5


def test_probit_refuses_a_negative_variance() -> None:
    covariance = torch.eye(2).repeat(3, 1, 1)
    covariance[1, 1, 1] = -4.0
    with pytest.raises(NotPositiveDefiniteError, match=r"got -4 for example 1, output 1. Compute .* in float64"):
        LIKELIHOOD.probit(torch.zeros(3, 2), covariance)
