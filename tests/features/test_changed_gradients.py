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


class CheckpointedWithin(nn.Module):
    """The inputs of the checkpoint do need a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.middle, self.out = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(torch.tanh(checkpoint(self.middle, self.inner(x), use_reentrant=True)))


def test_reentrant_checkpointing_within_a_network_is_named():
    x = torch.randn(4, 3, dtype=torch.float64)
    with pytest.raises(NetworkError, match="use_reentrant=False"):
        LayerwiseFeatures(Network(CheckpointedWithin().double(), x), x)


class Hooked(nn.Module):
    """A hook on the gradient of the hidden units."""

    def __init__(self, hook, scale: float = 1.0) -> None:
        super().__init__()
        self.inner, self.out, self.hook, self.scale = nn.Linear(3, 3), nn.Linear(3, 2), hook, scale

    def forward(self, x):
        hidden = self.inner(x)
        if hidden.requires_grad:
            hidden.register_hook(self.hook)
        return self.scale * self.out(torch.tanh(hidden))


class ClippedBackward(torch.autograd.Function):
    """The identity, with a gradient that is clipped by its norm."""

    @staticmethod
    def forward(ctx, h):
        return h.view_as(h)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * (3 / grad.norm(dim=1, keepdim=True)).clamp(max=1)


class Clipped(Hooked):
    def forward(self, x):
        return self.out(torch.tanh(ClippedBackward.apply(self.inner(x))))


NOT_LINEAR = {
    "clipped": lambda: Hooked(lambda grad: grad.clamp(-1, 1)),
    "clipped, small outputs": lambda: Hooked(lambda grad: grad.clamp(-0.1, 0.1), 1e-5),
    "normalised": lambda: Hooked(lambda grad: grad / grad.norm(dim=1, keepdim=True)),
    "signs": lambda: Hooked(torch.sign),
    "guided": lambda: Hooked(torch.relu),
    "largest": lambda: Hooked(lambda grad: torch.where(grad.abs() == grad.abs().amax(1, True), grad, 0.0)),
    "Function": lambda: Clipped(None),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("engine", [LayerwiseFeatures, JacobianFeatures])
@pytest.mark.parametrize("name", NOT_LINEAR)
def test_gradients_that_are_not_linear(name, engine, dtype):
    """Jᵀu is not linear in u, so that no matrix J belongs to it."""
    torch.manual_seed(0)
    module, x = NOT_LINEAR[name]().to(dtype), torch.randn(4, 3, dtype=dtype)
    with pytest.raises(NetworkError, match="hooks"):
        engine(Network(module, x), x)


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.FallbackWarning")
def test_a_hook_that_is_linear_is_part_of_the_network():
    torch.manual_seed(0)
    module, x = Hooked(lambda grad: 2 * grad).double(), torch.randn(4, 3, dtype=torch.float64)
    found = LayerwiseFeatures(Network(module, x), x).jacobian(x)
    torch.testing.assert_close(found, brute_force.jacobian(module, x), rtol=1e-12, atol=1e-12)


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


class Distances(nn.Module):
    """torch can differentiate cdist only once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.centres, self.out = nn.Linear(2, 3), nn.Parameter(torch.randn(4, 3)), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(torch.cdist(self.inner(x), self.centres))


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.FallbackWarning")
def test_second_derivatives_that_torch_does_not_have():
    torch.manual_seed(0)
    module, x = Distances().double(), torch.randn(5, 2, dtype=torch.float64)
    with pytest.raises(NetworkError, match="second derivatives"):
        ON(module, GaussianLikelihood(1.0), 5).step(x, x[:, :1])
