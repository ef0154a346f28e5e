"""A weight that is used more than once has the sum of its uses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from features.support import assert_right, close, engine, explicit, kernel, rand_tokens, randn, tight_budget, various
from torch import Tensor, nn


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class CalledAtOneAndManyPositions(CalledTwice):
    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.tanh(self.layer(x.unflatten(1, (1, 3)) * x.unsqueeze(-1)))
        return self.head(torch.tanh(self.layer(x)) + tokens.sum(1))


class TiedLinear(nn.Module):
    """One matrix, two biases."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(layers))
        for layer in self.layers[1:]:
            layer.weight = self.layers[0].weight

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class TiedBias(nn.Module):
    """Two matrices, one bias, which is also added by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.bias = self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x)))) * x + self.first.bias


class TiedEmbedding(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens)).mean(1))


class TwoLookups(nn.Module):
    """One table for two columns of different length."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 3), nn.Linear(3, 2)

    def forward(self, few: Tensor, many: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(few).sum(1)) * self.table(many).sum(1))


class TwoResolutions(nn.Module):
    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 2, padding=1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        coarse = torch.tanh(self.conv(F.avg_pool2d(x, 2)))
        return torch.tanh(self.conv(x)).mean((2, 3)) * coarse.mean((2, 3))


class Slices(nn.Module):
    """Rows of one matrix as two layers, and a slice of a bias."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.w, self.b, self.whole = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(5)), whole

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(F.linear(x, self.w[:3], self.b[:3]))
        out = F.linear(hidden, self.w[3:], self.b[3:])
        return out * F.linear(x, self.w, self.b)[:, 1:3] if self.whole else out


class Overlapping(Slices):
    """Rows 0 to 2 and rows 1 to 4, which share two."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(F.linear(x, self.w[:3])), self.w[1:4], self.b[1:4])


class Part(Slices):
    """Rows that are never used have a derivative of zero."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, self.w[1:3])) + self.b[:2]


class Autoencoder(nn.Module):
    """W and its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(torch.tanh(F.linear(x, self.w)), self.w.T) + self.b)


class AutoencoderByProducts(Autoencoder):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(x @ self.w.T) @ self.w + self.b)


class ScaleAndShift(nn.Module):
    """One vector that is added and multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.w) - self.w


class Stacked(nn.Module):
    """One table of weights, whose entries are the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        for w in self.w:
            x = torch.tanh(x @ w)
        return x


def vectors() -> Tensor:
    return randn(4, 3)


NETWORKS = {
    "a layer called twice": (CalledTwice, vectors),
    "at one position and at many": (CalledAtOneAndManyPositions, vectors),
    "two layers, one matrix": (TiedLinear, vectors),
    "three layers, one matrix": (lambda: TiedLinear(3), vectors),
    "two layers, one matrix, tokens": (TiedLinear, lambda: randn(4, 2, 3)),
    "two layers, one bias": (TiedBias, vectors),
    "embedding tied to the outputs": (lambda: TiedEmbedding(False), lambda: rand_tokens(5, 4, 3)),
    "embedding tied to the outputs, bias": (lambda: TiedEmbedding(True), lambda: rand_tokens(5, 4, 3)),
    "two lookups in one table": (TwoLookups, lambda: (rand_tokens(5, 4, 1), rand_tokens(5, 4, 3, seed=2))),
    "a convolution at two resolutions": (TwoResolutions, lambda: randn(4, 2, 4, 4)),
    "grouped, at two resolutions": (lambda: TwoResolutions(2), lambda: randn(4, 2, 4, 4)),
    "slices": (lambda: Slices(False), vectors),
    "slices and the whole": (lambda: Slices(True), vectors),
    "overlapping slices": (lambda: Overlapping(False), vectors),
    "a part": (lambda: Part(False), vectors),
    "an autoencoder": (Autoencoder, vectors),
    "an autoencoder by products": (AutoencoderByProducts, vectors),
    "scale and shift": (ScaleAndShift, vectors),
    "layers in one tensor": (Stacked, vectors),
}


def built(name: str) -> tuple[nn.Module, Tensor]:
    make, inputs = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().eval(), inputs()


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_sums_of_uses(name):
    """Every product, by rules alone."""
    assert_right(*built(name))


@pytest.mark.parametrize("name", ["two layers, one matrix, tokens", "embedding tied to the outputs, bias"])
def test_sums_of_uses_in_chunks(name):
    module, inputs = built(name)
    features = engine(module, inputs)
    assert tight_budget(features, lambda: features.kernel_full(inputs, various(features))) >= 2
    close(features.kernel_full(inputs, various(features)), kernel(explicit(module, inputs), various(features)))


def test_a_transpose_with_a_bias_is_right():
    """F.linear(x, W.T, b): two uses, one of W and one of b."""

    class Decoder(Autoencoder):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(torch.tanh(F.linear(x, self.w)), self.w.T, self.b)

    module = Decoder().double()
    features = engine(module, vectors())
    assert features.rest is None
    close(features.jacobian(vectors()), explicit(module, vectors()))
