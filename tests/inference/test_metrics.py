"""Each metric against scikit-learn or a plain numpy computation, and the cases in which it is known by heart."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor

from dnn2gp.inference.metrics import accuracy, check_predictions, ece, nll
from dnn2gp.support.errors import InputError

Metric = Callable[[Tensor, Tensor], float]


def random_predictions(
    seed: int, num_examples: int, num_classes: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_examples, num_classes, generator=generator, dtype=dtype)
    return logits.softmax(-1), torch.randint(num_classes, (num_examples,), generator=generator)


def numpy_ece(probabilities: np.ndarray, labels: np.ndarray, num_bins: int) -> float:
    """Example by example and bin by bin, as it is defined: bins (low, high] of the largest probability."""
    total = 0.0
    for b in range(num_bins):
        rows = [
            (p.max(), p.argmax() == y)
            for p, y in zip(probabilities, labels, strict=True)
            if b / num_bins < p.max() <= (b + 1) / num_bins
        ]
        if rows:
            confidence, correct = np.mean([c for c, _ in rows]), np.mean([r for _, r in rows])
            total += len(rows) / len(labels) * abs(correct - confidence)
    return total


sizes = given(seed=st.integers(0, 10**6), num_examples=st.integers(1, 60), num_classes=st.integers(2, 6))


@sizes
def test_accuracy_is_that_of_scikit_learn(seed: int, num_examples: int, num_classes: int) -> None:
    p, y = random_predictions(seed, num_examples, num_classes)
    assert accuracy(p, y) == pytest.approx(accuracy_score(y.numpy(), p.argmax(-1).numpy()))


@sizes
def test_nll_is_that_of_scikit_learn(seed: int, num_examples: int, num_classes: int) -> None:
    p, y = random_predictions(seed, num_examples, num_classes)
    assert nll(p, y) == pytest.approx(log_loss(y.numpy(), p.numpy(), labels=range(num_classes)), rel=1e-9)


@sizes
def test_ece_is_that_of_its_definition(seed: int, num_examples: int, num_classes: int) -> None:
    p, y = random_predictions(seed, num_examples, num_classes)
    assert ece(p, y) == pytest.approx(numpy_ece(p.numpy(), y.numpy(), 15), abs=1e-12)
    assert ece(p, y, num_bins=4) == pytest.approx(numpy_ece(p.numpy(), y.numpy(), 4), abs=1e-12)


@pytest.mark.parametrize("metric", [accuracy, nll, ece])
def test_float32_gives_nearly_the_same(metric: Metric) -> None:
    p, y = random_predictions(0, 50, 5)
    assert metric(p.float(), y) == pytest.approx(metric(p, y), rel=1e-5)


def test_certain_and_right() -> None:
    p, y = torch.eye(4), torch.arange(4)
    assert (accuracy(p, y), nll(p, y), ece(p, y)) == (1.0, 0.0, 0.0)


def test_certain_and_wrong() -> None:
    p, y = torch.eye(4), torch.tensor([1, 2, 3, 0])
    assert (accuracy(p, y), nll(p, y), ece(p, y)) == (0.0, math.inf, 1.0)


def test_calibrated_but_unsure() -> None:
    p = torch.tensor([[0.75, 0.25]]).repeat(4, 1)
    assert ece(p, torch.tensor([0, 0, 0, 1])) == pytest.approx(0)
    assert ece(p, torch.tensor([0, 0, 1, 1])) == pytest.approx(0.25)


def test_errors_of_one_bin_do_not_hide_those_of_another() -> None:
    """0.6 and right, 0.9 and wrong: on average as right as sure, but neither bin is calibrated."""
    p = torch.tensor([[0.6, 0.4], [0.9, 0.1]])
    assert ece(p, torch.tensor([0, 1])) == pytest.approx(0.5 * 0.4 + 0.5 * 0.9)


def test_a_negative_probability_has_no_logarithm() -> None:
    with pytest.raises(InputError, match=r"-0\.1.*probit"):
        nll(torch.tensor([[1.1, -0.1]]), torch.tensor([1]))


@pytest.mark.parametrize("metric", [accuracy, nll, ece])
def test_no_examples(metric: Metric) -> None:
    with pytest.raises(InputError, match="N ≥ 1"):
        metric(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(("p", "y"), [((3, 2), (4,)), ((3,), (3,)), ((3, 2), (3, 1))])
def test_shapes_must_fit(p: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Asked of the check itself: in the tests the hook of jaxtyping refuses such calls before they are made."""
    with pytest.raises(InputError, match=f"{re.escape(str(p))} and {re.escape(str(y))}"):
        check_predictions(torch.full(p, 0.5), torch.zeros(y, dtype=torch.int64))


def test_there_must_be_bins() -> None:
    with pytest.raises(InputError, match="num_bins"):
        ece(torch.eye(2), torch.arange(2), num_bins=0)
