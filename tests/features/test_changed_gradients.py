"""Networks whose gradient by torch is not the derivative: refused, with the cause; max_norm embeddings are right."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from dnn2gp import OGGN, ON, GaussianLikelihood
from dnn2gp.features import JacobianFeatures, LayerwiseFeatures
from dnn2gp.network import Network
from dnn2gp.support.errors import NetworkError

from reference import brute_force

TOKENS = torch.tensor([[0, 0, 1], [2, 3, 3], [4, 5, 0], [1, 1, 1]])


class Embedded(nn.Module):
    def __init__(self, layer: type[nn.Module], **options) -> None:
        super().__init__()
        self.table, self.out = layer(6, 3, **options), nn.Linear(3, 2)

    def forward(self, tokens):
        looked_up = self.table(tokens)
        return self.out(torch.tanh(looked_up if looked_up.ndim == 2 else looked_up.sum(1)))


class Functional(nn.Module):
    """The same option in a call of the function."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(6, 3)), nn.Linear(3, 2)

    def forward(self, tokens):
        return self.out(torch.nn.functional.embedding(tokens, self.table, scale_grad_by_freq=True).sum(1).tanh())


@pytest.mark.parametrize("engine", [LayerwiseFeatures, JacobianFeatures])
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("option", ["scale_grad_by_freq", "sparse"])
def test_the_option_is_named(engine, layer, option):
    module = Embedded(layer, **{option: True}).double()
    with pytest.raises(NetworkError, match=option):
        engine(Network(module, TOKENS), TOKENS)


def test_the_option_of_a_function_is_named():
    module = Functional().double()
    with pytest.raises(NetworkError, match="scale_grad_by_freq"):
        LayerwiseFeatures(Network(module, TOKENS), TOKENS)


def test_a_frozen_table_may_have_any_option():
    module = Embedded(nn.Embedding, scale_grad_by_freq=True, sparse=True).double()
    module.table.requires_grad_(False)
    found = LayerwiseFeatures(Network(module, TOKENS), TOKENS).jacobian(TOKENS)
    torch.testing.assert_close(found, brute_force.jacobian(module, TOKENS), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.FallbackWarning")
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_max_norm_leaves_the_weights_alone(layer, frozen):
    torch.manual_seed(0)
    module = Embedded(layer, max_norm=0.5).double()
    module.table.requires_grad_(not frozen)
    before = module.table.weight.detach().clone()
    features = LayerwiseFeatures(Network(module, TOKENS), TOKENS)
    anchor = features.anchor.clone()
    found = features.jacobian(TOKENS)
    assert torch.equal(features.anchor, anchor)
    assert torch.equal(module.table.weight, before)
    module(TOKENS)  # torch scales the table here
    torch.testing.assert_close(found, brute_force.jacobian(module, TOKENS), rtol=1e-12, atol=1e-12)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(torch.tanh(checkpoint(self.inner, x, use_reentrant=True)))


def test_reentrant_checkpointing_is_named():
    x = torch.randn(4, 3, dtype=torch.float64)
    module = Checkpointed().double()
    with pytest.raises(NetworkError, match="use_reentrant"):
        LayerwiseFeatures(Network(module, x), x)


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(weight_norm(nn.Linear(2, 3)), nn.Tanh(), nn.Linear(3, 1)).double()


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.FallbackWarning")
def test_second_derivatives_that_do_not_commute():
    """torch's double backward through weight_norm is wrong; the Gauss-Newton matrix needs none."""
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    OGGN(normed(), GaussianLikelihood(1.0), 5).step(x, x[:, :1])
    with pytest.raises(NetworkError, match="weight_norm"):
        ON(normed(), GaussianLikelihood(1.0), 5).step(x, x[:, :1])
