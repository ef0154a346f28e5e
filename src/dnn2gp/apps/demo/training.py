"""The digits, a small convolutional network, and its training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dnn2gp.apps.demo.config import DemoConfig
from dnn2gp.support.progress import track
from dnn2gp.tune.one_thread import one_thread

NUM_CLASSES = 10


@dataclass(frozen=True)
class Digits:
    """Training and test digits: images in [0, 1], and labels."""

    train_images: Float[Tensor, "N 1 8 8"]
    train_labels: Int[Tensor, " N"]
    test_images: Float[Tensor, "M 1 8 8"]
    test_labels: Int[Tensor, " M"]


def load_data(num_train: int, generator: torch.Generator) -> Digits:
    """The digits, shuffled and split."""
    pixels, classes = load_digits(return_X_y=True)
    images = torch.as_tensor(pixels, dtype=torch.float64).reshape(-1, 1, 8, 8) / 16
    labels = torch.as_tensor(classes, dtype=torch.int64)
    order = torch.randperm(len(images), generator=generator)
    train_part, test_part = order[:num_train], order[num_train:]
    return Digits(images[train_part], labels[train_part], images[test_part], labels[test_part])


def build_network(channels: tuple[int, int] = DemoConfig.channels, seed: int = 0) -> nn.Sequential:
    """Two convolutions and one linear layer in float64, with initial weights that depend only on `seed`."""
    first, second = channels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, first, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(second * 4, NUM_CLASSES),
        ).to(torch.float64)


@one_thread()
def train(
    network: nn.Module,
    images: Float[Tensor, "N 1 8 8"],
    labels: Int[Tensor, " N"],
    config: DemoConfig,
    generator: torch.Generator,
) -> None:
    """Train as most people do: Adam with mini-batches on the cross-entropy, for a fixed number of epochs."""
    adam = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in track(range(config.epochs), "training: Adam"):
        for batch in torch.randperm(len(labels), generator=generator).split(32):
            adam.zero_grad()
            cross_entropy(network(images[batch]), labels[batch]).backward()
            adam.step()
