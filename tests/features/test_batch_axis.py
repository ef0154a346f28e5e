"""Examples that are not the first axis inside the network, or share an axis with tokens."""

from __future__ import annotations

import pytest
import torch
from features.support import assert_right, close, constant, engine, explicit, kernel, randn
from torch import Tensor, nn


class Inside(nn.Module):
    """A layer between two rearrangements, which `inner` and `outer` are."""

    def __init__(self, layer: nn.Module, inner, outer) -> None:
        super().__init__()
        self.layer, self.inner, self.outer = layer, inner, outer
        self.register_buffer("mix", randn(3, 2, seed=5))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.outer(self.layer(self.inner(x)), x)
        weights = torch.arange(1.0, hidden[0, ..., 0].numel() + 1, dtype=hidden.dtype)
        return torch.einsum("nld,l,dk->nk", torch.tanh(hidden.flatten(1, -2)), weights, self.mix)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


LAYERS = {
    "linear": lambda: nn.Linear(3, 3),
    "linear, no bias": lambda: nn.Linear(3, 3, bias=False),
    "layer norm": lambda: nn.LayerNorm(3),
    "scale": Scale,
}
ORDERS = {
    "sequence first": (lambda x: x.transpose(0, 1), lambda h, x: h.transpose(0, 1)),
    "merged (N, L)": (lambda x: x.flatten(0, 1), lambda h, x: h.unflatten(0, x.shape[:2])),
    "merged (L, N)": (
        lambda x: x.transpose(0, 1).flatten(0, 1),
        lambda h, x: h.unflatten(0, (x.shape[1], len(x))).transpose(0, 1),
    ),
    "merged (L, N), with an axis more": (
        lambda x: x.transpose(0, 1).flatten(0, 1)[None],
        lambda h, x: h[0].unflatten(0, (x.shape[1], len(x))).transpose(0, 1),
    ),
    "windows of two": (
        lambda x: x.unflatten(1, (-1, 2)).flatten(0, 1),
        lambda h, x: h.unflatten(0, (len(x), -1)).flatten(1, 2),
    ),
    "last but one": (lambda x: x.permute(1, 0, 2)[:, None], lambda h, x: h[:, 0].permute(1, 0, 2)),
}


def network(layer: str, order: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Inside(LAYERS[layer](), *ORDERS[order]).double().eval()


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("examples", "tokens"), [(5, 4), (4, 4), (1, 4)])
def test_where_the_examples_are(layer, order, examples, tokens):
    """By rules alone, also for L = N and N = 1."""
    module, x = network(layer, order), randn(examples, tokens, 3)
    features = engine(module, x)
    assert features.rest is None
    J = explicit(module, x)
    close(features.jacobian(x), J)
    close(features.kernel_trace(x, constant(features)), torch.einsum("nkmk->nm", kernel(J, constant(features))))


@pytest.mark.parametrize("order", ORDERS)
def test_all_products(order):
    assert_right(network("linear", order), randn(4, 2, 3))


CONVOLUTIONS = {
    "conv": lambda: nn.Conv1d(3, 3, 2, padding="same"),
    "grouped": lambda: nn.Conv1d(3, 3, 2, padding="same", groups=3),
    "transposed": lambda: nn.ConvTranspose1d(3, 3, 3, padding=1),
    "batch norm": lambda: nn.BatchNorm1d(3),
    "PReLU": lambda: nn.PReLU(3),
}


@pytest.mark.slow
@pytest.mark.parametrize("layer", CONVOLUTIONS)
@pytest.mark.parametrize("order", ["merged (N, L)", "merged (L, N)"])
def test_frames_through_a_convolution(layer, order):
    """(N, T, L, C) as N·T sequences, in both orders."""
    inner, outer = ORDERS[order]
    module = Inside(CONVOLUTIONS[layer](), lambda x: inner(x).mT, lambda h, x: outer(h.mT, x)).double().eval()
    assert_right(module, randn(3, 2, 4, 3))


@pytest.mark.parametrize("order", ["merged (N, L)", "merged (L, N)"])
def test_merged_tokens(order):
    """An embedding of all tokens in one row."""
    inner, outer = ORDERS[order]
    module = Inside(
        nn.Embedding(5, 3), lambda x: inner(x[..., None])[:, 0], lambda h, x: outer(h, x[..., None])
    ).double()
    assert_right(module, torch.randint(5, (4, 2), generator=torch.Generator().manual_seed(0)))


def test_one_layer_in_both_orders():
    """Which no reading of the axes covers: right all the same."""

    class Both(Inside):
        def forward(self, x: Tensor) -> Tensor:
            (i, o), (j, p) = ORDERS["merged (N, L)"], ORDERS["merged (L, N)"]
            return (o(self.layer(i(x)).tanh(), x) * p(self.layer(j(x)), x)).sum(1)

    module = Both(nn.Linear(3, 3), None, None).double()
    x = randn(4, 2, 3)
    with pytest.warns(UserWarning, match="general engine"):
        features = engine(module, x)
    close(features.jacobian(x), explicit(module, x))


@pytest.mark.parametrize("layer", ["linear, no bias", "scale"])
def test_the_order_is_right_even_if_the_first_examples_cannot_tell(layer):
    """Zeros, of which every reading gives the same, then others."""
    module, x = network(layer, "merged (L, N)"), randn(6, 4, 3)
    x[:3] = 0
    module.mix.add_(1)
    module = nn.Sequential(module, nn.Linear(2, 2).double())
    features = engine(module, x)
    close(features.jacobian(x), explicit(module, x))


def test_a_loop_over_the_examples():
    """Each use belongs to one example; the general engine takes the weights."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([torch.tanh(self.layer(row)).sum(0) for row in x])

    module, x = Loop().double(), randn(5, 2, 3)
    with pytest.warns(UserWarning, match="general engine"):
        features = engine(module, x)
    close(features.jacobian(x), explicit(module, x))
