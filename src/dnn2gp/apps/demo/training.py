"""The digits, a small convolutional network, and its training to a minimum of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from jaxtyping import Float, Int
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dnn2gp.apps.demo.config import DemoConfig
from dnn2gp.support.errors import DivergedError
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
            nn.Tanh(),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.Tanh(),
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
    """Train to a minimum of Σ_n cross-entropy + ½ δ wᵀw, where the mean of the GP is the network.

    Adam with small batches gets close to it, and L-BFGS on all data goes the rest of the way.
    """
    weights = list(network.parameters())

    def objective(chosen: Tensor | slice) -> Tensor:
        target = labels[chosen]
        scale = len(labels) / len(target)  # a batch represents all data
        penalty = 0.5 * config.prior_precision * sum((w.square().sum() for w in weights), start=torch.zeros(()))
        return scale * cross_entropy(network(images[chosen]), target, reduction="sum") + penalty

    adam = torch.optim.Adam(weights, lr=0.03)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, max(config.adam_epochs, 1))
    for _ in track(range(config.adam_epochs), "training: Adam"):
        for batch in torch.randperm(len(labels), generator=generator).split(100):
            adam.zero_grad()
            objective(batch).backward()
            adam.step()
        decay.step()

    lbfgs = torch.optim.LBFGS(
        weights, max_iter=10, history_size=100, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        lbfgs.zero_grad()
        loss = objective(slice(None))
        loss.backward()
        return loss.item()

    for _ in track(range(config.lbfgs_steps // 10), "training: L-BFGS"):
        lbfgs.step(closure)
    with torch.no_grad():
        loss = objective(slice(None)).item()
    if not isfinite(loss):
        raise DivergedError(
            f"prior_precision: training has diverged: the loss is {loss}. Use a prior precision nearer to "
            f"{DemoConfig.prior_precision:g} than {config.prior_precision:g}, or another seed."
        )
