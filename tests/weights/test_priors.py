"""Prior precisions in all their forms, and the converter from weight decay: the same minimiser."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp import precision_from_weight_decay
from dnn2gp.network import Network
from dnn2gp.support.errors import InputError
from dnn2gp.weights.priors import expand_precision


@pytest.fixture
def network():
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1, bias=False))
    return Network(module, torch.zeros(1, 2))


def test_forms(network):
    weights, layout = network.weights, network.layout
    per_layer = torch.tensor([2.0] * 9 + [5.0] * 3)
    assert torch.equal(expand_precision(2.0, layout, weights), torch.full((12,), 2.0))
    assert torch.equal(expand_precision(torch.tensor([2.0, 5.0]), layout, weights), per_layer)
    assert torch.equal(expand_precision({"2": 5.0, "0": 2.0}, layout, weights), per_layer)
    assert torch.equal(expand_precision(per_layer, layout, weights), per_layer)
    assert torch.equal(layout.sum_by_layer(torch.arange(12.0)), torch.tensor([36.0, 30.0]))


LOSSES = {
    # torch loss (mean), loss of one example in the convention of the paper, converter's keywords, K, targets
    "cross entropy": (
        nn.CrossEntropyLoss(),
        lambda f, y: torch.logsumexp(f, 0) - f[y],
        {},
        3,
        torch.tensor([0, 2, 1, 1]),
    ),
    "binary": (
        nn.BCEWithLogitsLoss(),
        lambda f, y: (torch.log1p(torch.exp(f)) - y * f).sum(),
        {"num_outputs": 2},
        2,
        torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64),
    ),
    "squared": (
        nn.MSELoss(),
        lambda f, y: ((f - y) ** 2).sum() / (2 * 0.3**2),
        {"num_outputs": 2, "sigma": 0.3},
        2,
        torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.5, 0.0], [1.0, -1.0]], dtype=torch.float64),
    ),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_weight_decay_becomes_the_delta_of_the_same_minimum(kind):
    """∇[mean loss + ½ λ wᵀw] is proportional to ∇[Σ ℓᵢ + ½ δ wᵀw] at any w."""
    torch_loss, loss, keywords, outputs, y = LOSSES[kind]
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = torch.randn(outputs, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    decay = 1e-2
    mean = torch.autograd.grad(torch_loss(x @ w.T, y) + 0.5 * decay * (w**2).sum(), w)[0]
    delta = precision_from_weight_decay(decay, 4, **keywords)
    total = sum(loss(f, t) for f, t in zip(x @ w.T, y, strict=True)) + 0.5 * delta * (w**2).sum()
    summed = torch.autograd.grad(total, w)[0]
    torch.testing.assert_close(summed / delta, mean / decay, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "bad", [(0.0, 10, {}), (1e-3, 0, {}), (1e-3, 10, {"sigma": 0.0}), (1e-3, 10, {"num_outputs": 0})]
)
def test_converter_refuses(bad):
    decay, count, keywords = bad
    with pytest.raises(InputError, match="Without weight decay"):
        precision_from_weight_decay(decay, count, **keywords)
