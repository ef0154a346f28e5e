"""The networks of the table: data sets, and networks that are trained on them as people train them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from dnn2gp.paper.datasets import load_images

Pair = tuple[Tensor, Tensor]
REGIMES = ("overfit", "early-stopped", "weight decay", "underfit")
KINDS = ("tanh", "ReLU", "BatchNorm")


@dataclass(frozen=True)
class Split:
    """Training, validation and test data, standardised on the first."""

    train: Pair
    validation: Pair
    test: Pair
    num_classes: int


@dataclass(frozen=True)
class Case:
    """One network: what it is trained on, how, and with which random numbers."""

    data: str
    regime: str
    kind: str
    seed: int

    @property
    def name(self) -> str:
        """A name for files and tables."""
        return f"{self.data}, {self.kind}, {self.regime}, split {self.seed}"


def generated(
    seed: int, classes: int, features: int, informative: int, flipped: float, count: int = 1500
) -> Callable[[], tuple]:
    """A set of scikit-learn's make_classification."""
    return lambda: datasets.make_classification(
        count,
        features,
        n_informative=informative,
        n_classes=classes,
        flip_y=flipped,
        class_sep=1.5,
        random_state=seed,
    )


SETS: dict[str, tuple[Callable[[], tuple], int]] = {
    "iris": (lambda: datasets.load_iris(return_X_y=True), 75),
    "wine": (lambda: datasets.load_wine(return_X_y=True), 90),
    "cancer": (lambda: datasets.load_breast_cancer(return_X_y=True), 200),
    "digits": (lambda: datasets.load_digits(return_X_y=True), 300),
    "moons": (lambda: datasets.make_moons(1000, noise=0.3, random_state=0), 150),
    "circles": (lambda: datasets.make_circles(1000, noise=0.2, factor=0.5, random_state=0), 150),
    "generated, 3 classes": (generated(1, 3, 10, 6, 0.05), 200),
    "generated, 5 classes": (generated(2, 5, 20, 10, 0.1), 300),
}
"""Loaders, and the number of training examples."""
MINIMA: dict[str, tuple[Callable[[], tuple], int]] = {
    "cancer": (SETS["cancer"][0], 225),
    "digits": (SETS["digits"][0], 675),
    "moons": (lambda: datasets.make_moons(4000, noise=0.3, random_state=0), 750),
    "circles": (lambda: datasets.make_circles(4000, noise=0.2, factor=0.5, random_state=0), 750),
    "generated, 3 classes": (generated(1, 3, 10, 6, 0.05, 4000), 750),
}
"""The same for networks at a minimum, with enough examples to compare two NLLs to 0.05 nats where there are enough."""
IMAGES = {"MNIST": "mnist", "Fashion-MNIST": "fashion_mnist"}
NUM_IMAGES = 1500, 500, 2000
"""Images to train, to validate and to test."""


def split(data: str, seed: int, sets: dict[str, tuple[Callable[[], tuple], int]] = SETS) -> Split:
    """A random split of a data set: the validation set has a third of the examples of the training set."""
    if data in IMAGES:
        return _images(IMAGES[data], seed)
    load, count = sets[data]
    x, y = load()
    x_train, x_rest, y_train, y_rest = train_test_split(x, y, train_size=count, stratify=y, random_state=seed)
    held = min(max(30, count // 3), len(x_rest) // 2)
    x_held, x_test, y_held, y_test = train_test_split(
        x_rest, y_rest, train_size=held, stratify=y_rest, random_state=seed
    )
    scaler = StandardScaler().fit(x_train)

    def pair(x: np.ndarray, y: np.ndarray) -> Pair:
        return torch.from_numpy(scaler.transform(x)), torch.from_numpy(y).long()

    return Split(pair(x_train, y_train), pair(x_held, y_held), pair(x_test, y_test), int(y.max()) + 1)


def _images(name: str, seed: int) -> Split:
    """Some images of the training set, and others of the test set."""
    train, held, test = NUM_IMAGES
    images = load_images(name)
    order = np.random.default_rng(seed).permutation(len(images.train_labels))

    def pair(x: Tensor, y: Tensor, index: np.ndarray | slice) -> Pair:
        return x[index].float().reshape(-1, 1, 28, 28), y[index].long()

    own = images.train_images, images.train_labels
    return Split(
        pair(*own, order[:train]),
        pair(*own, order[train : train + held]),
        pair(images.test_images, images.test_labels, slice(0, test)),
        10,
    )


def build(case: Case, data: Split) -> nn.Module:
    """Two hidden layers of 50, or a small convolutional network for images."""
    if case.data in IMAGES:
        return _convolutional(case.kind == "BatchNorm")
    act = nn.Tanh if case.kind == "tanh" else nn.ReLU
    layers: list[nn.Module] = []
    width = data.train[0].shape[1]
    for _ in range(2):
        layers += [nn.Linear(width, 50), *([nn.BatchNorm1d(50)] if case.kind == "BatchNorm" else []), act()]
        width = 50
    return nn.Sequential(*layers, nn.Linear(width, data.num_classes)).double()


def _convolutional(normalised: bool) -> nn.Module:
    def block(i: int, o: int) -> list[nn.Module]:
        norm = [nn.BatchNorm2d(o)] if normalised else []
        return [nn.Conv2d(i, o, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 8), *block(8, 16), *block(16, 16), nn.Flatten(), nn.Linear(144, 10))


def train(network: nn.Module, case: Case, data: Split) -> nn.Module:
    """Adam with mini-batches of 32, as most people do."""
    (x, y), images = data.train, case.data in IMAGES
    underfit, decay = case.regime == "underfit", 1e-3 if case.regime == "weight decay" else 0.0
    rate = 1e-3 if underfit else 3e-3 if images else 1e-2
    epochs = (2 if images else 10) if underfit else (30 if images else 200)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, weight_decay=decay)
    kept, best, waited = None, float("inf"), 0
    for _ in range(epochs):
        network.train()
        for batch in torch.randperm(len(x)).split(32):
            if len(batch) > 1:  # BatchNorm needs two
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
        if case.regime == "early-stopped":
            value = cross_entropy(network, data.validation)
            waited = waited + 1
            if value < best:
                kept, best, waited = {k: v.clone() for k, v in network.state_dict().items()}, value, 0
            if waited > 10:
                break
    if kept is not None:
        network.load_state_dict(kept)
    return network.eval()


def cross_entropy(network: nn.Module, data: Pair) -> float:
    """The mean NLL of a network."""
    network.eval()
    with torch.no_grad():
        return nn.functional.cross_entropy(network(data[0]), data[1]).item()
