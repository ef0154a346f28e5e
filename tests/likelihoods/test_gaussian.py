"""Gaussian noise: shapes of σ, its gradient, and refusals."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from dnn2gp.likelihoods import GaussianLikelihood
from dnn2gp.support.errors import InputError

from .cases import sigma_per_entry, sigma_per_example, sigma_per_output
from reference import likelihoods as oracle

N, K = 4, 3


def random(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("sigma", [0.3, torch.tensor(0.3, dtype=torch.float64), 2])
def test_scalar_sigma_as_a_number_or_a_tensor(sigma: float | torch.Tensor) -> None:
    f, y = random(N, K), random(N, K) + 1
    expected = oracle.scipy_gaussian_log_prob(f, y, torch.as_tensor(sigma, dtype=torch.float64))
    assert_close(GaussianLikelihood(sigma).log_prob(f, y), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shape", [sigma_per_output, sigma_per_example, sigma_per_entry])
def test_log_prob_against_scipy(shape) -> None:
    f, y, sigma = random(N, K), random(N, K) + 1, shape(N, K)
    expected = oracle.scipy_gaussian_log_prob(f, y, sigma)
    assert_close(GaussianLikelihood(sigma).log_prob(f, y), expected, rtol=1e-13, atol=1e-13)


def test_values_by_hand() -> None:
    likelihood = GaussianLikelihood(0.5)
    f, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 4.0]])
    assert_close(likelihood.loss(f, y), torch.tensor([10.0]))
    assert_close(likelihood.residual(f, y), torch.tensor([[-4.0, -8.0]]))
    assert_close(likelihood.noise_precision(f), 4 * torch.eye(2).unsqueeze(0))
    assert_close(likelihood.covariance(f), 0.25 * torch.eye(2).unsqueeze(0))


@pytest.mark.parametrize("shape", [sigma_per_output, sigma_per_example, sigma_per_entry])
def test_gradients_reach_the_users_sigma(shape) -> None:
    sigma = shape(N, K).requires_grad_()
    likelihood = GaussianLikelihood(sigma)
    f, y = random(N, K), random(N, K) + 1
    inputs = (sigma,)
    assert torch.autograd.gradcheck(lambda s: GaussianLikelihood(s).log_prob(f, y), inputs)
    assert torch.autograd.gradcheck(lambda s: GaussianLikelihood(s).noise_precision_root(f), inputs)
    assert torch.autograd.gradcheck(lambda s: GaussianLikelihood(s).take(slice(0, N)).residual(f, y), inputs)
    (gradient,) = torch.autograd.grad(likelihood.log_prob(f.float(), y.float()).sum(), sigma)
    assert gradient.dtype == torch.float64
    assert gradient.shape == sigma.shape


def test_changing_the_users_sigma_in_place_changes_nothing() -> None:
    sigma = torch.tensor([0.5, 0.25])
    likelihood = GaussianLikelihood(sigma)
    sigma.fill_(7.0)
    assert torch.equal(likelihood.sigma, torch.tensor([0.5, 0.25]))


def test_take_keeps_rows_of_a_per_example_sigma_only() -> None:
    sigma = sigma_per_example(N, K)
    index = torch.tensor([3, 1])
    assert torch.equal(GaussianLikelihood(sigma).take(index).sigma, sigma[[3, 1]])
    assert torch.equal(GaussianLikelihood(sigma).take(slice(1, 3)).sigma, sigma[1:3])
    for shared in (GaussianLikelihood(0.1), GaussianLikelihood(sigma_per_output(N, K))):
        assert shared.take(index) is shared


def test_a_one_dimensional_sigma_is_per_output_even_if_it_has_n_entries() -> None:
    sigma = torch.full((N,), 0.1)
    f = random(N, K, dtype=torch.float32)
    message = r"each of the 3 network outputs; got 4 entries\. .*shape \(N, 1\)"
    with pytest.raises(InputError, match=message):
        GaussianLikelihood(sigma).loss(f, f)
    with pytest.raises(InputError, match=message):
        GaussianLikelihood(sigma).check_targets(f, N, K, torch.float32)
    square = random(K, K)
    per_output = GaussianLikelihood(sigma_per_output(K, K)).covariance(square).diagonal(dim1=-2, dim2=-1)
    assert_close(per_output, sigma_per_output(K, K).square().expand(K, K))


def test_a_per_example_sigma_for_other_examples_is_refused() -> None:
    likelihood = GaussianLikelihood(sigma_per_example(N, K))
    f = random(N + 1, K)
    calls = [
        lambda: likelihood.loss(f, f),
        lambda: likelihood.covariance(f),
        lambda: likelihood.noise_precision_root(f),
        lambda: likelihood.sample(f, 1, None),
        lambda: likelihood.check_targets(f, N + 1, K, torch.float64),
    ]
    for call in calls:
        with pytest.raises(
            InputError,
            match=r"for each of 4 examples, but was applied to 5\. Pass "
            r"likelihood=GaussianLikelihood\(sigma_for_these_points\)",
        ):
            call()


def test_a_single_row_of_sigma_does_not_spread_over_all_examples() -> None:
    with pytest.raises(InputError, match=r"for each of 1 examples, but was applied to 4"):
        GaussianLikelihood(torch.ones(1, K)).covariance(random(N, K))


def test_a_per_example_sigma_with_wrong_columns_is_refused() -> None:
    with pytest.raises(InputError, match=r"shape \(4, 1\) or \(4, 3\) .*got \(4, 2\).*one column, or one per"):
        GaussianLikelihood(torch.ones(N, 2)).covariance(random(N, K))


@pytest.mark.parametrize(
    ("sigma", "value", "index"),
    [
        (0.0, "0.0", r"\(\)"),
        (-1.0, "-1.0", r"\(\)"),
        (float("nan"), "nan", r"\(\)"),
        (float("inf"), "inf", r"\(\)"),
        (torch.tensor([1.0, 0.0]), "0.0", r"\(1,\)"),
        (torch.tensor([[1.0], [2.0], [-3.0]]), "-3.0", r"\(2, 0\)"),
    ],
)
def test_a_sigma_that_is_not_finite_and_positive_is_refused(sigma, value: str, index: str) -> None:
    with pytest.raises(InputError, match=rf"finite sigma > 0; got {value} at index {index} .*rescale the targets"):
        GaussianLikelihood(sigma)


@pytest.mark.parametrize("sigma", [torch.tensor([1, 2]), torch.ones(2, 2, 2), torch.tensor(1.0 + 0j)])
def test_a_sigma_of_another_form_is_refused(sigma: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"shape \(\), \(K,\), \(N, 1\) or \(N, K\); got shape .*dtype.*Reshape it"):
        GaussianLikelihood(sigma)


def test_a_sigma_that_underflows_in_the_networks_dtype_is_refused() -> None:
    likelihood = GaussianLikelihood(1e-60)
    assert bool(likelihood.residual(random(N, K), random(N, K) + 1).isfinite().all())
    with pytest.raises(InputError, match=r"finite sigma > 0; got 0.0 .*torch.float32"):
        likelihood.covariance(random(N, K).float())


def test_a_tiny_sigma_does_not_underflow_when_squared() -> None:
    """σ² = 1e-46 is 0 in float32; r and ℓ are finite."""
    likelihood = GaussianLikelihood(1e-23)
    f = torch.full((1, 1), 1e-20)
    y = torch.zeros(1, 1)
    assert_close(likelihood.residual(f, y), torch.full((1, 1), 1e26))
    assert_close(likelihood.loss(f, y), torch.tensor([5e5]))


@pytest.mark.parametrize("shape", [(6, 4), (6, 2, 2), (6, 1, 4), (6, 4, 1)])
def test_targets_that_flatten_to_k_columns_are_accepted(shape: tuple[int, ...]) -> None:
    targets = random(*shape)
    checked = GaussianLikelihood(1.0).check_targets(targets, 6, 4, torch.float64)
    assert torch.equal(checked, targets.reshape(6, 4))


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 1, 1)])
def test_targets_for_a_single_output(shape: tuple[int, ...]) -> None:
    targets = random(*shape)
    checked = GaussianLikelihood(1.0).check_targets(targets, 6, 1, torch.float64)
    assert torch.equal(checked, targets.reshape(6, 1))


@pytest.mark.parametrize(("shape", "columns"), [((6,), 1), ((6, 3), 3), ((6, 2, 4), 8), ((6, 0), 0)])
def test_targets_with_other_columns_are_refused(shape: tuple[int, ...], columns: int) -> None:
    message = rf"expected 4 target value\(s\) per example, .*got {columns} .*Reshape the targets to \(6, 4\)"
    with pytest.raises(InputError, match=message):
        GaussianLikelihood(1.0).check_targets(torch.zeros(*shape), 6, 4, torch.float32)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64, torch.float16, torch.complex64])
def test_targets_of_another_dtype_are_refused(dtype: torch.dtype) -> None:
    message = rf"network's dtype torch.float32; got .*{dtype}\. Use targets.to\(torch.float32\)"
    with pytest.raises(InputError, match=message):
        GaussianLikelihood(1.0).check_targets(torch.zeros(6, 1, dtype=dtype), 6, 1, torch.float32)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_targets_that_are_not_finite_are_refused(value: float) -> None:
    targets = torch.zeros(6, 2)
    targets[4, 1] = targets[5, 0] = value
    with pytest.raises(InputError, match=rf"finite targets; got {value} in row 4 .*\(6, 2\).*Remove or impute"):
        GaussianLikelihood(1.0).check_targets(targets, 6, 2, torch.float32)


def test_state_is_a_detached_copy() -> None:
    sigma = sigma_per_entry(N, K).T.contiguous().T.requires_grad_()
    state = GaussianLikelihood(sigma).state()
    assert state["sigma"].is_contiguous()
    assert state["sigma"].data_ptr() != sigma.data_ptr()
    assert torch.equal(state["sigma"], sigma)


@pytest.mark.parametrize("sigma", [[0.1, 0.2], "0.1", True])
def test_sigma_must_be_a_number_or_a_tensor(sigma) -> None:
    with pytest.raises(InputError, match="sigma: expected a number or a tensor; got"):
        GaussianLikelihood(sigma)
