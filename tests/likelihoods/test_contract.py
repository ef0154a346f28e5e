"""What every likelihood must satisfy, against oracles that share no code with it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from dnn2gp import likelihoods as package
from dnn2gp.likelihoods import Likelihood, likelihood_from_state
from dnn2gp.support.errors import FileFormatError, InputError

from .cases import CASES, Case
from reference import likelihoods as oracle

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
each_saved_case = pytest.mark.parametrize("case", [case for case in CASES if case.saves], ids=lambda case: case.id)
sizes = given(
    num_examples=st.integers(1, 4),
    extra_outputs=st.integers(0, 3),
    scale=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    seed=st.integers(0, 2**32 - 1),
)
few = settings(max_examples=25, deadline=None)


@dataclass(frozen=True)
class Problem:
    likelihood: Likelihood
    f: Tensor
    y: Tensor
    log_prob: oracle.LogProb


def make(case: Case, num_examples: int, extra_outputs: int, scale: float, seed: int) -> Problem:
    num_outputs = case.min_outputs + extra_outputs
    generator = torch.Generator().manual_seed(seed)
    f = scale * torch.randn(num_examples, num_outputs, generator=generator, dtype=torch.float64)
    y = case.targets(f, generator)
    likelihood = case.build(num_examples, num_outputs)
    return Problem(likelihood, f, y, case.log_prob(num_examples, num_outputs))


def sizes_of(problem: Problem) -> tuple[int, int]:
    return len(problem.f), problem.f.shape[1]


def close(actual: Tensor, expected: Tensor) -> None:
    assert_close(actual, expected, rtol=1e-11, atol=1e-12)


@each_case
@few
@sizes
def test_log_prob_is_the_density_and_loss_plus_normaliser(case: Case, **size: int) -> None:
    problem = make(case, **size)
    likelihood, f, y = problem.likelihood, problem.f, problem.y
    close(likelihood.log_prob(f, y), problem.log_prob(f, y))
    close(likelihood.loss(f, y) + likelihood.log_normaliser(f, y), -problem.log_prob(f, y))


@each_case
@few
@sizes
def test_normaliser_is_free_of_f(case: Case, **size: int) -> None:
    """ℓ differs from −log p by something that training does not see."""
    problem = make(case, **size)
    assert_close(
        problem.likelihood.log_normaliser(problem.f, problem.y),
        problem.likelihood.log_normaliser(problem.f + 1.0, problem.y),
        rtol=0,
        atol=0,
    )


@each_case
@few
@sizes
def test_residual_is_the_gradient(case: Case, **size: int) -> None:
    problem = make(case, **size)
    close(problem.likelihood.residual(problem.f, problem.y), oracle.gradient(problem.log_prob, problem.f, problem.y))


@pytest.mark.slow
@each_case
@few
@sizes
def test_noise_precision_is_the_hessian_and_its_root_squares_to_it(case: Case, **size: int) -> None:
    problem = make(case, **size)
    expected = oracle.hessian(problem.log_prob, problem.f, problem.y)
    root = problem.likelihood.noise_precision_root(problem.f, problem.y)
    close(problem.likelihood.noise_precision(problem.f, problem.y), expected)
    close(root @ root.mT, expected)
    assert root.shape == (*problem.f.shape, problem.f.shape[1] - case.rank_deficit)


@each_case
@few
@sizes
def test_mean_and_its_jacobian(case: Case, **size: int) -> None:
    problem = make(case, **size)
    close(problem.likelihood.mean(problem.f), case.mean(problem.f))
    close(problem.likelihood.mean_jacobian(problem.f), oracle.jacobian(case.mean, problem.f))


@each_case
@few
@sizes
def test_inverse_map_inverts_the_transformed_output(case: Case, **size: int) -> None:
    """Appendix B: ỹ = Jw − Λ⁺ r maps back to y. r lies in the range of Λ, so the pseudo-inverse loses nothing."""
    problem = make(case, **size)
    f, y, likelihood = problem.f, problem.y, problem.likelihood
    linear = 2.0 * f - 1.0
    pseudo_inverse = torch.linalg.pinv(likelihood.noise_precision(f), hermitian=True, rtol=1e-12)
    transformed = linear - (pseudo_inverse @ likelihood.residual(f, y).unsqueeze(-1)).squeeze(-1)
    recovered = likelihood.inverse_map(transformed, f, linear)
    assert_close(recovered, case.as_vectors(y, f.shape[1]), rtol=1e-8, atol=1e-8)


@each_case
@few
@sizes
def test_inverse_map_at_the_linear_prediction_is_the_mean(case: Case, **size: int) -> None:
    problem = make(case, **size)
    linear = problem.f - 3.0
    close(problem.likelihood.inverse_map(linear, problem.f, linear), case.mean(problem.f))


@pytest.mark.slow
@each_case
@few
@sizes
def test_an_example_does_not_depend_on_the_others(case: Case, **size: int) -> None:
    problem = make(case, **size)
    likelihood, f, y = problem.likelihood, problem.f, problem.y
    last = slice(len(f) - 1, None)
    alone = likelihood.take(last)
    methods: list[Callable[[Likelihood, Tensor, Tensor], Tensor]] = [
        lambda like, f, y: like.log_prob(f, y),
        lambda like, f, y: like.residual(f, y),
        lambda like, f, y: like.noise_precision(f, y),
        lambda like, f, y: like.covariance(f),
        lambda like, f, y: like.mean(f),
    ]
    for method in methods:
        close(method(alone, f[last], y[last]), method(likelihood, f, y)[last])
    index = torch.tensor([len(f) - 1])
    close(likelihood.take(index).loss(f[index], y[index]), likelihood.loss(f, y)[last])


@each_case
@few
@sizes
def test_canonical_targets_are_a_fixed_point(case: Case, **size: int) -> None:
    problem = make(case, **size)
    checked = problem.likelihood.check_targets(problem.y, *sizes_of(problem), torch.float64)
    assert_close(checked, problem.y, rtol=0, atol=0)


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_f(case: Case, dtype: torch.dtype) -> None:
    problem = make(case, 3, 1, 1.0, 0)
    f = problem.f.to(dtype)
    y = problem.y if problem.y.dtype == torch.int64 else problem.y.to(dtype)
    like = problem.likelihood
    for value in (
        *(like.loss(f, y), like.log_normaliser(f, y), like.log_prob(f, y), like.mean(f), like.mean_jacobian(f)),
        *(like.residual(f, y), like.noise_precision(f), like.noise_precision_root(f, y), like.covariance(f)),
        like.inverse_map(f, f, f),
    ):
        assert value.dtype == dtype
    draws = like.sample(f, 2, torch.Generator().manual_seed(0))
    assert draws.dtype == (torch.int64 if y.dtype == torch.int64 else dtype)


@each_case
def test_float32_agrees_with_float64(case: Case) -> None:
    problem = make(case, 4, 2, 2.0, 1)
    f32 = problem.f.float()
    f64 = f32.double()
    y32 = problem.y if problem.y.dtype == torch.int64 else problem.y.float()
    y64 = y32 if y32.dtype == torch.int64 else y32.double()
    like = problem.likelihood
    for low, high in [
        (like.log_prob(f32, y32), like.log_prob(f64, y64)),
        (like.residual(f32, y32), like.residual(f64, y64)),
        (like.noise_precision(f32, y32), like.noise_precision(f64, y64)),
        (like.mean(f32), like.mean(f64)),
        (like.covariance(f32), like.covariance(f64)),
    ]:
        assert_close(low.double(), high, rtol=2e-6, atol=2e-6)


@each_case
def test_sample_moments_are_mean_and_covariance(case: Case) -> None:
    """Within 5 standard errors of 200 000 draws, each entry's own standard error estimated from the draws."""
    num_samples = 200_000
    problem = make(case, 2, 1, 1.0, 3)
    draws = problem.likelihood.sample(problem.f, num_samples, torch.Generator().manual_seed(7))
    centred = case.as_vectors(draws, problem.f.shape[1]) - problem.likelihood.mean(problem.f)
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    for values, expected in [
        (centred, torch.zeros_like(problem.f)),
        (products, problem.likelihood.covariance(problem.f)),
    ]:
        error = (values.mean(0) - expected).abs()
        standard_error = values.std(0) / num_samples**0.5
        assert bool((error <= 5 * standard_error + 1e-12).all())


@each_case
def test_samples_are_canonical_targets_reproducible_and_leave_the_global_rng_alone(case: Case) -> None:
    problem = make(case, 3, 1, 1.0, 4)
    like, f = problem.likelihood, problem.f
    before = torch.get_rng_state()
    draws = like.sample(f, 5, torch.Generator().manual_seed(11))
    again = like.sample(f, 5, torch.Generator().manual_seed(11))
    fresh = like.sample(f, 1000, None)
    other = like.sample(f, 1000, None)
    assert torch.equal(torch.get_rng_state(), before)
    assert draws.shape == (5, *problem.y.shape)
    assert torch.equal(draws, again)
    assert not torch.equal(fresh, other)
    for draw in draws:
        assert torch.equal(like.check_targets(draw, len(f), f.shape[1], f.dtype), draw)


@each_case
def test_inputs_are_not_changed(case: Case) -> None:
    problem = make(case, 3, 1, 1.0, 5)
    like, f, y = problem.likelihood, problem.f.clone(), problem.y.clone()
    like.check_targets(y, len(f), f.shape[1], f.dtype)
    for method in (like.log_prob, like.residual, like.noise_precision):
        method(f, y)
    for method in (like.mean, like.mean_jacobian, like.covariance):
        method(f)
    like.sample(f, 2, None)
    like.inverse_map(f, f, f)
    assert torch.equal(f, problem.f)
    assert torch.equal(y, problem.y)


@each_case
def test_loss_residual_and_mean_are_differentiable_in_f(case: Case) -> None:
    problem = make(case, 3, 1, 1.0, 6)
    f = problem.f.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(problem.likelihood.loss(f, problem.y).sum(), f)
    close(gradient, problem.likelihood.residual(problem.f, problem.y))
    direction = torch.linspace(-1.0, 1.0, f.shape[1], dtype=f.dtype).expand(f.shape)
    (product,) = torch.autograd.grad((problem.likelihood.residual(f, problem.y) * direction).sum(), f)
    expected = problem.likelihood.noise_precision(problem.f, problem.y) @ direction.unsqueeze(-1)
    close(product, expected.squeeze(-1))
    (product,) = torch.autograd.grad((problem.likelihood.mean(f) * direction).sum(), f)
    close(product, (problem.likelihood.mean_jacobian(problem.f).mT @ direction.unsqueeze(-1)).squeeze(-1))


@each_saved_case
def test_state_round_trip(case: Case) -> None:
    problem = make(case, 3, 1, 1.0, 8)
    like, f, y = problem.likelihood, problem.f, problem.y
    state = like.state()
    assert all(value.is_contiguous() and not value.requires_grad for value in state.values())
    restored = likelihood_from_state(like.name, state)
    assert type(restored) is type(like)
    assert torch.equal(restored.log_prob(f, y), like.log_prob(f, y))
    assert torch.equal(restored.noise_precision(f), like.noise_precision(f))


@each_saved_case
def test_a_state_with_other_keys_is_refused(case: Case) -> None:
    like = make(case, 2, 1, 1.0, 9).likelihood
    state = {**like.state(), "extra": torch.zeros(1)}
    with pytest.raises(FileFormatError, match=rf"exactly .*{like.name!r} likelihood; got .*'extra'.*save"):
        likelihood_from_state(like.name, state)


@each_case
def test_a_wrong_number_of_targets_is_refused(case: Case) -> None:
    problem = make(case, 3, 1, 1.0, 10)
    advice = "Pass the targets of exactly these inputs"
    with pytest.raises(InputError, match=rf"each of the 4 examples; got 3 targets .*shape \(3.*{advice}"):
        problem.likelihood.check_targets(problem.y, 4, problem.f.shape[1], torch.float64)
    with pytest.raises(InputError, match=rf"each of the 1 examples; got a single number .*shape \(\).*{advice}"):
        problem.likelihood.check_targets(torch.tensor(1.0), 1, problem.f.shape[1], torch.float64)


@each_case
def test_targets_that_are_no_tensor_are_refused(case: Case) -> None:
    problem = make(case, 3, 1, 1.0, 10)
    with pytest.raises(InputError, match=r"torch.Tensor; got list\. Use torch.as_tensor"):
        problem.likelihood.check_targets(problem.y.tolist(), *sizes_of(problem), torch.float64)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match=r"one of 'bernoulli', 'categorical', .*'poisson'.*got 'cauchy'.*Import"):
        likelihood_from_state("cauchy", {})


def test_a_name_cannot_be_taken_twice() -> None:
    with pytest.raises(TypeError, match=r"'poisson' belongs to dnn2gp.likelihoods.poisson.PoissonLikelihood"):
        type("Impostor", (Likelihood,), {"name": "poisson"})


def test_classes_are_abstract_or_final_and_each_is_in_the_table() -> None:
    exported = {value for value in vars(package).values() if inspect.isclass(value) and issubclass(value, Likelihood)}
    concrete = {cls for cls in exported if not inspect.isabstract(cls)}
    if sys.version_info >= (3, 11):  # typing.final leaves a mark from here on
        assert all(vars(cls).get("__final__", False) for cls in concrete)
    assert {type(case.build(2, 2)) for case in CASES} == concrete
    assert {cls.__name__ for cls in exported} | {"is_registered", "likelihood_from_state"} == set(package.__all__)
