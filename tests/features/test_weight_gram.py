"""JᵀJ by the structured product of single positions, against the product of explicit rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dnn2gp.features import Factors
from dnn2gp.features.blocks import Outer, Rows
from dnn2gp.features.weight_gram import WeightGram

N, R = 7, 3


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def explicit(factors: Factors) -> Tensor:
    """JᵀJ one example and one row at a time."""
    rows = factors.rows()
    return sum((torch.outer(row, row) for example in rows for row in example), torch.zeros(()))


def found(factors: Factors) -> Tensor:
    gram = WeightGram(factors.num_weights, torch.device("cpu"))
    for part in (slice(0, 2), slice(2, N)):
        gram.add(factors.take(part))
    return gram.result()


@pytest.mark.parametrize("rows", [1, R], ids=["one row", "several rows"])
def test_layers_with_and_without_bias_transposed_and_scaled(rows: int) -> None:
    biased = Outer(randn(N, 5, 1), randn(N, rows, 2, 1), (slice(3, 11), slice(0, 2)), scale=0.5)
    plain = Outer(randn(N, 3, 1), randn(N, rows, 4, 1), (slice(11, 23),), scale=2.0)
    transposed = Outer(randn(N, 2, 1), randn(N, rows, 3, 1), (slice(23, 29),), transposed=True)
    factors = Factors((biased, plain, transposed), 30)  # weights 2 and 29 belong to no layer
    torch.testing.assert_close(found(factors), explicit(factors))


def test_layers_at_several_positions_and_explicit_rows_fall_back_to_rows() -> None:
    layer = Outer(randn(N, 3, 1), randn(N, R, 2, 1), (slice(0, 6),))
    convolution = Outer(randn(N, 2, 4), randn(N, R, 3, 4), (slice(6, 12),))
    other = Rows(randn(N, R, 2), (slice(12, 14),))
    factors = Factors((layer, convolution, other), 14)
    torch.testing.assert_close(found(factors), explicit(factors))


def test_it_adds_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnn2gp.features.weight_gram._BUFFER", 1)  # one pair of outputs at a time
    layer = Outer(randn(N, 5, 1).float(), randn(N, R, 4, 1).float(), (slice(0, 16), slice(16, 20)))
    factors = Factors((layer,), 20)
    torch.testing.assert_close(found(factors), explicit(factors.to(torch.float64)))
