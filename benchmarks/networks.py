"""The networks that are measured, with random weights and random inputs from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from dnn2gp.paper import networks as nets

M = TypeVar("M", bound=nn.Module)
_SEED = 0


def lenet5(num_outputs: int = 10, channels: int = 1, side: int = 28) -> nn.Sequential:
    """LeNet-5 without padding: 44,426 weights for MNIST with 10 classes, 62,006 for CIFAR (3 channels, side 32)."""
    return _seeded(lambda: nets.lenet5(num_outputs, channels, side))


def mlp(width: int, num_inputs: int = 784, num_outputs: int = 10) -> nn.Sequential:
    """Two hidden layers of `width` units."""
    return _seeded(
        lambda: nn.Sequential(
            nn.Linear(num_inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, num_outputs),
        )
    )


class ResidualBlock(nn.Module):
    """relu(x' + bn(conv(relu(bn(conv(x)))))) with x' = x, or a strided 1 × 1 convolution of it where shapes change."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        """Two 3 × 3 convolutions, the first with the stride."""
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        same = stride == 1 and channels == out_channels
        self.shortcut: nn.Module = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        hidden = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.shortcut(x) + self.norm2(self.conv2(hidden)))


def small_resnet(num_outputs: int = 10) -> nn.Sequential:
    """Three stages of 16, 32 and 64 channels, a block each, for 32 × 32 × 3: 78,042 weights; eval mode."""
    return _seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            ResidualBlock(16, 16, 1),
            ResidualBlock(16, 32, 2),
            ResidualBlock(32, 64, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, num_outputs),
        )
    )


class TransformerClassifier(nn.Module):
    """Linear embedding → two encoder layers (d_model 64, 4 heads, feed-forward 128) → mean over tokens → Linear."""

    def __init__(self, num_outputs: int = 10, num_features: int = 16) -> None:
        """Tokens of `num_features` numbers; no dropout."""
        super().__init__()
        self.embedding = nn.Linear(num_features, 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(64, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of sequences N × T × D."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


def transformer(num_outputs: int = 10) -> TransformerClassifier:
    """The two-layer encoder, with weights from the seed."""
    return _seeded(lambda: TransformerClassifier(num_outputs))


class TokenTransformer(nn.Module):
    """Embeddings of tokens and positions → two encoder layers (d_model 64, 4 heads, 128) → mean → Linear."""

    def __init__(self, num_outputs: int = 10, vocabulary: int = 500, length: int = 32) -> None:
        """Sequences of up to `length` tokens; no dropout."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, 64)
        self.positions = nn.Parameter(torch.randn(length, 64))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(64, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of sequences N × T."""
        hidden = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


def token_transformer(num_outputs: int = 10) -> TokenTransformer:
    """The two-layer encoder of 500 tokens at 32 positions: 101,642 weights."""
    return _seeded(lambda: TokenTransformer(num_outputs))


def random_inputs(num_examples: int, *shape: int) -> Tensor:
    """Standard normal inputs from the seed, in float64."""
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(num_examples, *shape, dtype=torch.float64, generator=generator)


def random_labels(num_examples: int, num_outputs: int) -> Tensor:
    """Labels from the seed."""
    return torch.randint(num_outputs, (num_examples,), generator=torch.Generator().manual_seed(_SEED))


def _seeded(build: Callable[[], M]) -> M:
    """A module in eval mode, built in float64 from the seed, so that both dtypes have the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return build().double().eval()
