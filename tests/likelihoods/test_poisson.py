"""Poisson: accepted counts and refusals."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from dnn2gp.likelihoods import PoissonLikelihood
from dnn2gp.support.errors import InputError

from reference import likelihoods as oracle

LIKELIHOOD = PoissonLikelihood()


def test_log_prob_against_scipy() -> None:
    f = torch.linspace(-3, 4, 12, dtype=torch.float64).reshape(4, 3)
    y = torch.arange(12, dtype=torch.float64).reshape(4, 3)
    assert_close(LIKELIHOOD.log_prob(f, y), oracle.scipy_poisson_log_prob(f, y), rtol=1e-12, atol=1e-12)


def test_values_by_hand() -> None:
    f, y = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 0.0]])
    assert_close(LIKELIHOOD.loss(f, y), torch.tensor([2.0]))
    assert_close(LIKELIHOOD.log_normaliser(f, y), torch.tensor([6.0]).log())
    assert_close(LIKELIHOOD.residual(f, y), torch.tensor([[-2.0, 1.0]]))


def test_the_root_does_not_overflow_where_the_rate_does() -> None:
    assert bool(LIKELIHOOD.noise_precision_root(torch.tensor([[100.0]])).isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_counts_of_any_real_dtype_are_accepted(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    checked = LIKELIHOOD.check_targets(torch.tensor([0, 1]).to(dtype).reshape(shape), 2, 1, torch.float32)
    assert_close(checked, torch.tensor([[0.0], [1.0]]), rtol=0, atol=0)


@pytest.mark.parametrize("value", [-1.0, 0.5, 1 + 1e-12])
def test_targets_that_are_no_counts_are_refused(value: float) -> None:
    targets = torch.tensor([0.0, 3.0, value, value], dtype=torch.float64)
    message = rf"counts 0, 1, 2, \.\.\.; got {value} in row 2 .*\(4, 1\).*Pass raw counts"
    with pytest.raises(InputError, match=message):
        LIKELIHOOD.check_targets(targets, 4, 1, torch.float32)


def test_negative_integers_are_refused() -> None:
    with pytest.raises(InputError, match=r"got -2 in row 1 .*torch.int64"):
        LIKELIHOOD.check_targets(torch.tensor([1, -2]), 2, 1, torch.float32)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_counts_that_are_not_finite_in_the_networks_dtype_are_refused(value: float) -> None:
    targets = torch.tensor([0.0, value], dtype=torch.float64)
    with pytest.raises(InputError, match=r"finite targets; got (nan|inf) in row 1 .*Remove or impute"):
        LIKELIHOOD.check_targets(targets, 2, 1, torch.float32)


def test_wrong_columns_and_complex_targets_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected 1 target value\(s\) per example, .*got 2 .*give the network 2"):
        LIKELIHOOD.check_targets(torch.zeros(4, 2), 4, 1, torch.float32)
    with pytest.raises(InputError, match=r"expected real targets .*torch.complex64"):
        LIKELIHOOD.check_targets(torch.zeros(4, dtype=torch.complex64), 4, 1, torch.float32)
