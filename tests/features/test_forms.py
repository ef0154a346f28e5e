"""Inputs of several shapes, e.g. sequences of several lengths, in one engine: kernels between them."""

from __future__ import annotations

import warnings

import pytest
import torch
from features.support import close, constant, engine, explicit, rand_tokens, randn
from torch import Tensor, nn


class Positions(nn.Module):
    """Learned positions, as many as there are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.head = nn.Parameter(torch.randn(1, 6, 3)), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x + self.position[:, : x.shape[1]])).mean(1)


class LastPositions(Positions):
    """The last so many positions."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x.mean(1) + self.position[0, x.shape[1] - 1])).squeeze(1)


class Switch(nn.Module):
    """Long sequences by a function without a rule, short ones with one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        long = x.shape[1] > 4
        hidden = torch.einsum("nli,oi->nlo", x, self.first.weight) if long else self.first(x)
        return self.second(torch.tanh(hidden)).mean(1)


class Optional(nn.Module):
    """A layer that only long sequences use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.more, self.last = (nn.Linear(3, 3, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.more(hidden)) if x.shape[1] > 4 else hidden).mean(1)


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.conv(x.mT)).mean(2)


class Turned(nn.Module):
    """A square weight, used as it is or transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = x @ self.weight if x.shape[1] > 4 else nn.functional.linear(x, self.weight)
        return torch.tanh(hidden).mean(1)


class TurnedAtOnePosition(Turned):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1)
        return torch.tanh(mean @ self.weight if x.shape[1] > 4 else nn.functional.linear(mean, self.weight))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(3, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0][:, -1]


NETWORKS = [Positions, LastPositions, Switch, Optional, Convolution, Recurrent, Turned, TurnedAtOnePosition]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No layer rule")
@pytest.mark.parametrize("learned", ["short", "long"])
@pytest.mark.parametrize("order", ["short with long", "long with short"])
@pytest.mark.parametrize("make", NETWORKS)
def test_a_kernel_between_two_lengths(make, order, learned):
    """Whatever was seen first."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = make().double().eval()
    short, long = randn(3, 4, 3), randn(2, 6, 3)
    features = engine(module, short if learned == "short" else long)
    left, right = (short, long) if order == "short with long" else (long, short)
    J, other = explicit(module, left), explicit(module, right)
    full = torch.einsum("nkp,mlp->nkml", J, other) / 2.5
    close(features.kernel_full(left, constant(features), right), full)
    close(features.kernel_trace(left, constant(features), right), torch.einsum("nkmk->nm", full))
    close(features.kernel_diagonal(left, constant(features), right), torch.einsum("nkmk->nmk", full))
    close(features.jacobian(left), J)
    close(features.jacobian(right), other)


def test_tokens_of_two_lengths():
    """An embedding, whose factors have as many positions as there are tokens."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return torch.tanh(self.table(tokens).sum(1))

    module, left, right = Bag().double(), rand_tokens(5, 3, 2), rand_tokens(5, 4, 6)
    features = engine(module, left)
    expected = torch.einsum("nkp,mlp->nkml", explicit(module, left), explicit(module, right)) / 2.5
    close(features.kernel_full(left, constant(features), right), expected)


@pytest.mark.parametrize("work", ["kernel_trace", "jacobian", "plan"])
def test_a_new_length_in_inference_mode(work):
    """The form is learned then, which needs derivatives."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).mean(1)

    module, short, long = Mean().eval(), randn(3, 5, 3), randn(3, 7, 3)
    features = engine(module, short)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        if work == "plan":
            assert features.plan("kernel_trace", long).num_examples == 3
        else:
            arguments = (long, constant(features)) if work == "kernel_trace" else (long,)
            getattr(features, work)(*arguments)
    assert features.rest is None
