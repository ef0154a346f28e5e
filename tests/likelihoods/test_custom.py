"""A likelihood from a loss: equal to the built-in ones, Λ that depends on y, convexity, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

from dnn2gp.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    CustomLikelihood,
    GaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
    likelihood_from_state,
)
from dnn2gp.support.errors import InputError, NotPositiveDefiniteError


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def squared_loss(f: Tensor, y: Tensor) -> Tensor:
    return 0.5 * ((y - f) / 0.5).square().sum()


def log_cosh(f: Tensor, y: Tensor) -> Tensor:
    return torch.log(torch.cosh(y - f)).sum()


TWINS = [
    pytest.param(CustomLikelihood(squared_loss), GaussianLikelihood(0.5), random(3, 2) + 1, id="gaussian"),
    pytest.param(
        CustomLikelihood(
            lambda f, y: -(y * logsigmoid(f) + (1 - y) * logsigmoid(-f)).sum(),
            mean=torch.sigmoid,
        ),
        BernoulliLikelihood(),
        torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64),
        id="bernoulli",
    ),
    pytest.param(
        CustomLikelihood(lambda f, y: (f.exp() - y * f).sum(), mean=torch.exp),
        PoissonLikelihood(),
        torch.tensor([[0.0, 1.0], [2.0, 5.0], [3.0, 0.0]], dtype=torch.float64),
        id="poisson",
    ),
]


@pytest.mark.parametrize(("custom", "builtin", "y"), TWINS)
def test_equals_the_builtin_likelihood(custom: Likelihood, builtin: Likelihood, y: Tensor) -> None:
    f = random(3, 2)
    assert_close(custom.loss(f, y), builtin.loss(f, y))
    assert_close(custom.residual(f, y), builtin.residual(f, y))
    assert_close(custom.noise_precision(f, y), builtin.noise_precision(f, y))
    assert_close(custom.noise_precision(f), builtin.noise_precision(f))
    assert_close(custom.mean(f), builtin.mean(f))
    assert_close(custom.mean_jacobian(f), builtin.mean_jacobian(f))
    assert_close(custom.covariance(f), builtin.covariance(f))
    assert_close(custom.inverse_map(f + 1, f, f), builtin.inverse_map(f + 1, f, f))


def test_precision_depends_on_the_targets_and_defaults_to_the_mean() -> None:
    """∇² log cosh(y − f) = sech²(y − f), which is 1 at y = h(f) = f."""
    likelihood = CustomLikelihood(log_cosh)
    f, y = random(4, 2), random(4, 2).flip(0)
    expected = torch.diag_embed(torch.cosh(y - f).pow(-2))
    assert_close(likelihood.noise_precision(f, y), expected)
    assert_close(likelihood.noise_precision(f), torch.eye(2, dtype=torch.float64).expand(4, 2, 2))


def test_without_a_normaliser_the_loss_is_the_negative_log_density() -> None:
    f, y = random(3, 2), random(3, 2) + 1
    assert torch.equal(CustomLikelihood(squared_loss).log_prob(f, y), -CustomLikelihood(squared_loss).loss(f, y))


def test_parameters_of_an_example_can_travel_in_the_targets() -> None:
    """Two targets per output: y and σ."""
    likelihood = CustomLikelihood(lambda f, y: 0.5 * ((y[:1] - f) / y[1:]).square().sum())
    f, y = random(3, 1), random(3, 1) + 1
    sigma = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64)
    targets = likelihood.check_targets(torch.stack([y, sigma], 1), 3, 1, torch.float64)
    builtin = GaussianLikelihood(sigma)
    assert_close(likelihood.residual(f, targets), builtin.residual(f, y))
    assert_close(likelihood.noise_precision(f, targets), builtin.noise_precision(f, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_singular_hessian_has_a_root(dtype: torch.dtype) -> None:
    """A zero eigenvalue comes out of rounding with either sign; the root is real and squares to Λ."""
    likelihood = CustomLikelihood(lambda f, y: -(y * f.log_softmax(-1)).sum())
    f = random(50, 5).to(dtype)
    labels = torch.arange(50) % 5
    y = torch.nn.functional.one_hot(labels, 5).to(dtype)
    exact = CategoricalLikelihood().noise_precision(f)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    assert_close(likelihood.noise_precision(f, y), exact, rtol=0, atol=tolerance)


def test_a_flat_loss_has_a_zero_root() -> None:
    likelihood = CustomLikelihood(lambda f, y: (f * y).sum())
    assert_close(likelihood.noise_precision_root(random(2, 3), random(2, 3)), torch.zeros(2, 3, 3).double())


def test_small_positive_eigenvalues_are_kept() -> None:
    scale = torch.tensor([1.0, 1e-12], dtype=torch.float64)
    likelihood = CustomLikelihood(lambda f, y: 0.5 * (scale * (y - f).square()).sum())
    assert_close(likelihood.noise_precision(random(1, 2))[0].diagonal(), scale, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loss_that_is_not_convex_is_refused(dtype: torch.dtype) -> None:
    """∇² = diag(2, y): negative in examples 2 and 3 only."""
    likelihood = CustomLikelihood(lambda f, y: f[0] ** 2 + 0.5 * y[0] * f[1] ** 2)
    y = torch.tensor([[1.0], [0.0], [-0.5], [-1.0]], dtype=dtype)
    message = (
        r"eigenvalue -0\.5 for example 2 \(largest magnitude 2\); 2 of 4 examples .*"
        r"must be convex in f: use a convex loss"
    )
    with pytest.raises(NotPositiveDefiniteError, match=message):
        likelihood.noise_precision_root(random(4, 2).to(dtype), y)
    with pytest.raises(NotPositiveDefiniteError, match=message):
        likelihood.noise_precision(random(4, 2).to(dtype), y)


def test_a_slightly_negative_eigenvalue_is_refused_in_float64() -> None:
    likelihood = CustomLikelihood(lambda f, y: f[0] ** 2 - 1e-8 * f[1] ** 2)
    with pytest.raises(NotPositiveDefiniteError, match=r"eigenvalue -2e-08 for example 0"):
        likelihood.noise_precision_root(random(2, 2), random(2, 2))


def test_a_hessian_that_is_not_finite_is_refused() -> None:
    likelihood = CustomLikelihood(lambda f, y: (f.exp() - y * f).sum(), mean=torch.exp)
    f = torch.tensor([[0.0], [1000.0]], dtype=torch.float64)
    with pytest.raises(NotPositiveDefiniteError, match=r"not finite for example 1: .*stable form"):
        likelihood.noise_precision_root(f, torch.ones_like(f))


def test_the_default_covariance_of_a_singular_precision_is_refused() -> None:
    likelihood = CustomLikelihood(lambda f, y: -(y * f.log_softmax(-1)).sum(), mean=lambda f: f.softmax(-1))
    for f in (random(20, 4), random(20, 4).float()):
        with pytest.raises(
            NotPositiveDefiniteError, match=r"invertible Λ, but it is singular for example 0.*covariance="
        ):
            likelihood.covariance(f)


def test_a_given_covariance_is_used() -> None:
    likelihood = CustomLikelihood(log_cosh, covariance=lambda f: torch.eye(len(f), dtype=f.dtype) * math.pi)
    assert_close(likelihood.covariance(random(3, 2)), math.pi * torch.eye(2).double().expand(3, 2, 2))


def test_a_missing_sampler_is_refused() -> None:
    with pytest.raises(InputError, match=r"only a loss, which does not say how to draw y.*sample="):
        CustomLikelihood(squared_loss).sample(random(3, 2), 4, None)


def test_a_sampler_with_the_wrong_shape_is_refused() -> None:
    likelihood = CustomLikelihood(squared_loss, sample=lambda f, num_samples, generator: f)
    with pytest.raises(InputError, match=r"\(num_samples, N, \.\.\.\) = \(4, 3, \.\.\.\); got \(3, 2\)"):
        likelihood.sample(random(3, 2), 4, None)


@pytest.mark.parametrize("call", ["loss", "residual", "noise_precision"])
def test_a_loss_that_is_no_scalar_is_refused(call: str) -> None:
    likelihood = CustomLikelihood(lambda f, y: (y - f).square())
    with pytest.raises(InputError, match=r"returns a scalar for one example; got shape \(2,\) .*\.sum\(\)"):
        getattr(likelihood, call)(random(3, 2), random(3, 2))


def test_a_mean_of_another_shape_is_refused() -> None:
    likelihood = CustomLikelihood(squared_loss, mean=lambda f: f[:1])
    with pytest.raises(InputError, match=r"returns shape \(2,\) .*got \(1,\)\. Return one mean per network output"):
        likelihood.mean(random(3, 2))


def test_targets_keep_their_columns() -> None:
    likelihood = CustomLikelihood(squared_loss)
    for shape, columns in [((4,), 1), ((4, 3), 3), ((4, 2, 5), 10)]:
        targets = random(*shape)
        checked = likelihood.check_targets(targets, 4, 2, torch.float64)
        assert torch.equal(checked, targets.reshape(4, columns))
    censored = torch.tensor([1.0, float("inf")])
    assert torch.equal(likelihood.check_targets(censored, 2, 1, torch.float32), censored.unsqueeze(1))
    assert likelihood.check_targets(torch.tensor([1, 2]), 2, 1, torch.float32).dtype == torch.float32


def test_targets_with_nan_or_another_float_dtype_are_refused() -> None:
    likelihood = CustomLikelihood(squared_loss)
    targets = torch.zeros(3, 2)
    targets[1, 1] = float("nan")
    with pytest.raises(InputError, match=r"targets without NaN; got nan in row 1 .*\(3, 2\).*Remove or impute"):
        likelihood.check_targets(targets, 3, 2, torch.float32)
    with pytest.raises(InputError, match=r"network's dtype torch.float64; got .*torch.float32.*\.to\(torch.float64\)"):
        likelihood.check_targets(torch.zeros(3, 2), 3, 2, torch.float64)


def test_a_custom_likelihood_must_be_handed_to_load_again() -> None:
    likelihood = CustomLikelihood(squared_loss)
    with pytest.raises(InputError, match=r"functions cannot be stored.*pass it to load"):
        likelihood_from_state(likelihood.name, likelihood.state())
