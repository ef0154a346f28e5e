"""Softmax: the root of a singular Λ for saturated logits in float32, the probit approximation, and refusals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from dnn2gp import convert
from dnn2gp.likelihoods import BernoulliLikelihood, CategoricalLikelihood
from dnn2gp.support.errors import InputError

from reference import likelihoods as oracle

LIKELIHOOD = CategoricalLikelihood()
SMALLEST = 100 * torch.finfo(torch.float32).tiny


def saturated_logits(num_examples: int = 200, num_classes: int = 10) -> Tensor:
    """Logits of a well-trained classifier: the top one leads by 12 to 30, so that max p rounds to 1 in float32."""
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(num_examples, num_classes, generator=generator)
    top = torch.randint(num_classes, (num_examples, 1), generator=generator)
    lead = 12 + 18 * torch.rand(num_examples, 1, generator=generator)
    return f.scatter_add(1, top, lead)


def relative_error(actual: Tensor, expected: Tensor) -> Tensor:
    return ((actual.double() - expected) / expected).abs().flatten(1).amax(-1)


def test_root_of_saturated_logits_in_float32() -> None:
    """Every entry of S Sᵀ is right to 1e-6, relative, where diag(p) − ppᵀ from rounded p is off by over 1 %."""
    f = saturated_logits()
    exact = oracle.softmax_noise_precision(f)
    root = LIKELIHOOD.noise_precision_root(f).double()
    assert float(relative_error(root @ root.mT, exact).max()) < 1e-6
    p = f.softmax(-1)
    naive = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    assert float(relative_error(naive, exact).median()) > 0.01
    assert bool((torch.linalg.cholesky_ex(naive).info != 0).any())


@pytest.mark.parametrize("quantity", ["noise_precision", "covariance", "mean_jacobian"])
def test_precision_covariance_and_jacobian_of_saturated_logits_in_float32(quantity: str) -> None:
    f = saturated_logits()
    actual = getattr(LIKELIHOOD, quantity)(f)
    exact = oracle.softmax_noise_precision(f)
    assert float(relative_error(actual, exact).max()) < 2e-6


def test_root_entries_of_very_saturated_logits_in_float32() -> None:
    """Leads up to 80, p down to 1e-35: every entry of Λ that float32 can hold is right to 1e-6."""
    f = torch.tensor([[80.3, 0.1, -1.7, 3.3], [-2.2, 0.7, 61.1, -9.9], [1.0, 45.6, 45.5, -33.3]])
    exact = oracle.softmax_noise_precision(f)
    held = exact.abs() > SMALLEST
    root = LIKELIHOOD.noise_precision_root(f).double()
    assert int(held.sum()) > 30
    assert_close((root @ root.mT)[held], exact[held], rtol=1e-6, atol=0)


@settings(max_examples=60, deadline=None)
@given(
    num_examples=st.integers(1, 3),
    num_classes=st.integers(2, 6),
    scale=st.sampled_from([0.0, 1.0, 10.0, 30.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_root_for_all_logits_in_both_dtypes(num_examples: int, num_classes: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    f = scale * torch.randn(num_examples, num_classes, generator=generator)
    exact = oracle.softmax_noise_precision(f)
    held = exact.abs() > SMALLEST
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-13)):
        root = LIKELIHOOD.noise_precision_root(f.to(dtype)).double()
        assert root.shape == (num_examples, num_classes, num_classes - 1)
        assert_close((root @ root.mT)[held], exact[held], rtol=tolerance, atol=0)


def test_ties_at_the_top() -> None:
    f = torch.zeros(1, 4, dtype=torch.float64)
    root = LIKELIHOOD.noise_precision_root(f)
    assert_close(root @ root.mT, oracle.softmax_noise_precision(f), rtol=1e-14, atol=1e-15)
    assert_close(root.mT @ root, 0.25 * torch.eye(3, dtype=torch.float64).unsqueeze(0))


def test_the_ones_vector_is_the_null_space() -> None:
    root = LIKELIHOOD.noise_precision_root(saturated_logits().double())
    assert float(root.sum(-2).abs().max()) < 1e-15


def test_root_is_invariant_to_a_shift_of_the_logits() -> None:
    f = torch.tensor([[0.5, 2.0, -1.25]])
    assert_close(LIKELIHOOD.noise_precision_root(f + 1024.0), LIKELIHOOD.noise_precision_root(f), rtol=1e-6, atol=1e-7)


def test_residual_and_loss_of_saturated_logits_in_float32() -> None:
    f = saturated_logits()
    for y in (f.argmax(-1), f.argmin(-1)):
        assert float(relative_error(LIKELIHOOD.residual(f, y), oracle.softmax_residual(f, y)).max()) < 1e-6
        loss = LIKELIHOOD.loss(f, y)
        assert_close(loss.double(), oracle.softmax_loss(f, y), rtol=4e-6, atol=0)
    assert float(LIKELIHOOD.residual(f, f.argmax(-1)).sum(-1).abs().max()) < 1e-10


def test_the_usual_cross_entropy_loses_the_loss_of_a_saturated_example() -> None:
    f, y = torch.tensor([[25.0, 0.0]]), torch.tensor([0])
    assert float(torch.nn.functional.cross_entropy(f, y)) == 0.0
    assert_close(LIKELIHOOD.loss(f, y).double(), oracle.softmax_loss(f, y), rtol=1e-6, atol=0)


def test_log_prob_against_scipy() -> None:
    f = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    assert_close(LIKELIHOOD.log_prob(f, y), oracle.scipy_categorical_log_prob(f, y), rtol=1e-12, atol=1e-12)


def test_extreme_logits_stay_finite() -> None:
    f, y = torch.tensor([[1e4, -1e4, 0.0]]), torch.tensor([1])
    assert_close(LIKELIHOOD.loss(f, y), torch.tensor([2e4]))
    assert bool(LIKELIHOOD.noise_precision_root(f).isfinite().all())
    assert_close(LIKELIHOOD.residual(f, y), torch.tensor([[1.0, -1.0, 0.0]]))


def test_two_classes_are_a_bernoulli_of_the_difference() -> None:
    f = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 0, 1])
    difference = f[:, 1:] - f[:, :1]
    bernoulli = BernoulliLikelihood()
    assert_close(LIKELIHOOD.loss(f, y), bernoulli.loss(difference, y.double().unsqueeze(1)))
    assert_close(LIKELIHOOD.noise_precision(f)[:, 1:, 1:], bernoulli.noise_precision(difference))


def test_probit_of_two_classes_is_that_of_their_difference() -> None:
    """And a constant added to all logits, of whatever variance, changes nothing."""
    f = torch.tensor([[2.0, 0.0], [-1.0, 0.5]], dtype=torch.float64)
    covariance = torch.tensor([[4.0, -1.0], [-1.0, 3.0]], dtype=torch.float64).expand(2, 2, 2)
    expected = torch.sigmoid((f[:, 0] - f[:, 1]) / (1 + torch.pi * 9 / 8) ** 0.5)
    for constant in (0.0, 10.0, 1e4):
        found = LIKELIHOOD.probit(f + constant, covariance + constant)
        assert_close(found, torch.stack([expected, 1 - expected], 1))


def test_probit_is_near_the_expectation() -> None:
    """Three classes with correlated logits, against Monte Carlo; exact without variance."""
    generator = torch.Generator().manual_seed(0)
    f = torch.tensor([[1.0, -0.5, 0.3]], dtype=torch.float64)
    root = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    covariance = (root @ root.T)[None]
    noise = torch.randn(200_000, 3, generator=generator, dtype=torch.float64)
    exact = torch.softmax(f + noise @ root.T, -1).mean(0)
    error = (LIKELIHOOD.probit(f, covariance)[0] - exact).abs().max()
    assert error < 0.03
    each_apart = torch.softmax(f / (1 + torch.pi / 8 * covariance.diagonal(dim1=1, dim2=2)).sqrt(), -1)
    assert error < (each_apart[0] - exact).abs().max()  # what variances of single logits would give
    assert_close(LIKELIHOOD.probit(f, torch.zeros_like(covariance)), f.softmax(-1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_integer_dtype_become_int64(dtype: torch.dtype) -> None:
    checked = LIKELIHOOD.check_targets(torch.tensor([0, 2, 1]).to(dtype), 3, 3, torch.float32)
    assert_close(checked, torch.tensor([0, 2, 1]), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_labels_of_another_dtype_are_refused(dtype: torch.dtype) -> None:
    message = rf"expected integer labels of shape \(N,\); got .*\(3,\) and dtype {dtype}.*targets.to\(torch.int64\)"
    with pytest.raises(InputError, match=message):
        LIKELIHOOD.check_targets(torch.tensor([0, 1, 1]).to(dtype), 3, 3, torch.float32)


@pytest.mark.parametrize("shape", [(3, 1), (3, 3)])
def test_labels_of_another_shape_are_refused(shape: tuple[int, int]) -> None:
    message = rf"one per example; got targets of shape \(3, {shape[1]}\).*targets.squeeze\(1\).*targets.argmax\(dim=1\)"
    with pytest.raises(InputError, match=message):
        LIKELIHOOD.check_targets(torch.zeros(shape, dtype=torch.int64), 3, 3, torch.float32)


@pytest.mark.parametrize("label", [3, -1, -100])
def test_labels_out_of_range_are_refused(label: int) -> None:
    targets = torch.tensor([0, 2, label, 7])
    message = rf"labels 0\.\.2 \(the network has 3 outputs\); got {label} in row 2 .*\(4,\).*Recode the labels"
    with pytest.raises(InputError, match=message):
        LIKELIHOOD.check_targets(targets, 4, 3, torch.float32)


def test_a_single_output_is_refused() -> None:
    f, y = torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)
    calls = [
        lambda: LIKELIHOOD.check_targets(y, 2, 1, torch.float32),
        lambda: LIKELIHOOD.loss(f, y),
        lambda: LIKELIHOOD.mean(f),
        lambda: LIKELIHOOD.residual(f, y),
        lambda: LIKELIHOOD.noise_precision_root(f),
    ]
    for call in calls:
        with pytest.raises(InputError, match=r"at least 2 outputs, .*got 1. Use BernoulliLikelihood"):
            call()


def test_outputs_of_a_sequence_are_refused() -> None:
    """Each of T·K numbers as a class of its own would be a silent misreading."""
    CategoricalLikelihood().check_outputs((4,))
    with pytest.raises(InputError, match=r"outputs of shape \(N, K\), one logit per class; got \('N', 2, 4\)"):
        CategoricalLikelihood().check_outputs((2, 4))
    module, x = torch.nn.Linear(3, 4), torch.randn(10, 2, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="reduce the outputs"):
        convert(module, (x, torch.zeros(10, dtype=torch.long)), CategoricalLikelihood(), 1.0)
