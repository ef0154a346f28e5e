"""The synthetic regression of Fig. 5, a sine with a noisy middle: the paper's draws, or new ones.

    x in three clusters, U(−3.5, −1.5), U(−1, 1) and U(1.5, 3.5) with probabilities 0.45, 0.1 and 0.45
    y = sin x + ε,  ε of standard deviation 1 in the middle and 0.1 outside

The second input is the constant 1, as in the paper's runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.paper.datasets.folder import find, read_arrays
from dnn2gp.support.errors import InputError

FILE = "synthetic_regression.npz"
PAPERS = "the paper's draws"
_SHARES = (0.45, 0.1, 0.45)
_RANGES = ((-3.5, -1.5), (-1.0, 1.0), (1.5, 3.5))
_NOISE = (0.1, 1.0, 0.1)


@dataclass(frozen=True, eq=False)
class Draws:
    """Several draws of a regression: training and test sets, float64."""

    train_inputs: Float[Tensor, "D N I"]
    train_targets: Float[Tensor, "D N 1"]
    test_inputs: Float[Tensor, "D M I"]
    test_targets: Float[Tensor, "D M 1"]
    scale: Float[Tensor, " D"]
    """The unit of the target: squared errors are multiplied by its square."""
    source: str
    """Where the data come from, in words."""

    @property
    def count(self) -> int:
        """D."""
        return len(self.train_inputs)

    def take(self, count: int) -> Draws:
        """The first `count` draws."""
        pairs = (self.train_inputs, self.train_targets), (self.test_inputs, self.test_targets)
        (x, y), (x_test, y_test) = ((inputs[:count], targets[:count]) for inputs, targets in pairs)
        return Draws(x, y, x_test, y_test, self.scale[:count], self.source)


def synthetic_draws(count: int = 10) -> Draws:
    """The paper's draws if their file is in the data folder, otherwise new ones."""
    path = find(FILE)
    if path is None:
        return generate_draws(count)
    arrays = read_arrays(
        path,
        {
            "x_train": (None, None, 2),
            "y_train": (None, None),
            "x_test": (None, None, 2),
            "y_test": (None, None),
        },
    )
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if count > len(tensors["x_train"]):
        raise InputError(f"count: expected at most the {len(tensors['x_train'])} draws in {path}; got {count}.")
    draws = Draws(
        tensors["x_train"],
        tensors["y_train"][..., None],
        tensors["x_test"],
        tensors["y_test"][..., None],
        torch.ones(len(tensors["x_train"]), dtype=torch.float64),
        PAPERS,
    )
    return draws.take(count)


def generate_draws(count: int, num_train: int = 100, num_test: int = 2000, seed: int = 0) -> Draws:
    """New draws from the same distribution."""
    generator = np.random.default_rng(seed)
    pairs = [(_draw(num_train, generator), _draw(num_test, generator)) for _ in range(count)]
    train, test = ([pair[side] for pair in pairs] for side in (0, 1))
    return Draws(
        torch.stack([x for x, _ in train]),
        torch.stack([y for _, y in train]),
        torch.stack([x for x, _ in test]),
        torch.stack([y for _, y in test]),
        torch.ones(count, dtype=torch.float64),
        f"new draws (seed {seed})",
    )


def _draw(size: int, generator: np.random.Generator) -> tuple[Float[Tensor, "N 2"], Float[Tensor, "N 1"]]:
    cluster = generator.choice(len(_SHARES), size=size, p=_SHARES)
    low, high = (np.array([bounds[side] for bounds in _RANGES])[cluster] for side in (0, 1))
    x = generator.uniform(low, high)
    y = np.sin(x) + generator.normal(size=size) * np.array(_NOISE)[cluster]
    inputs = np.stack([x, np.ones_like(x)], 1)
    return torch.from_numpy(inputs), torch.from_numpy(y)[:, None]
