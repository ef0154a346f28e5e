"""The form of batch_norm that is cheaper to differentiate, compared with torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dnn2gp.features.engines.layerwise.rules import Rules


@pytest.mark.parametrize("affine", ["both", "weight", "bias", "neither"])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 2), (2, 3, 2, 2, 2)])
def test_it_equals_that_of_torch_with_its_derivative(shape, affine):
    generator = torch.Generator().manual_seed(0)

    def values(*size: int) -> Tensor:
        return torch.randn(size, dtype=torch.float64, generator=generator)

    x, mean, variance, cotangent = values(*shape).requires_grad_(True), values(3), values(3).exp(), values(*shape)
    weight = values(3) if affine in ("both", "weight") else None
    bias = values(3) if affine in ("both", "bias") else None
    results = []
    for function in (Rules.forms[F.batch_norm], F.batch_norm):
        output = function(x, mean, variance, weight, bias, training=False, eps=0.1)
        results.append((output, *torch.autograd.grad((output * cotangent).sum(), x)))
    torch.testing.assert_close(*results)


def test_statistics_of_the_batch_and_mixed_dtypes_are_left_to_torch(monkeypatch):
    calls = []
    original = F.batch_norm
    form = Rules.forms[original]
    monkeypatch.setattr(F, "batch_norm", lambda *given: calls.append(0) or original(*given))
    x, mean, variance = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    expected = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(form(x, mean, variance, training=True), expected)
    assert mean.any()  # updated in place
    found = form(x.bfloat16(), mean, variance)
    assert found.dtype == torch.bfloat16
    assert len(calls) == 2
