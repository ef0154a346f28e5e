"""Two generated classification problems in the plane: half moons (Fig. 9) and two bent clouds (Fig. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.datasets import make_moons
from torch import Tensor

from dnn2gp.support.errors import InputError


@dataclass(frozen=True, eq=False)
class LabelledPoints:
    """Points of two classes, float64."""

    inputs: Float[Tensor, "N 2"]
    labels: Int[Tensor, " N"]


def half_moons(count: int = 100, noise: float = 0.2, seed: int = 0) -> LabelledPoints:
    """Two interleaving half circles."""
    if count < 2:
        raise InputError(f"half_moons: expected at least 2 points; got {count}.")
    inputs, labels = make_moons(count, noise=noise, random_state=seed)
    return LabelledPoints(torch.tensor(inputs), torch.tensor(np.asarray(labels, dtype=np.int64)))


def bent_clouds(count: int = 100, seed: int = 0) -> LabelledPoints:
    """A cloud, and another one bent around it, with half of the points each, ordered by class.

    The paper does not say how its 2-D example was generated; this one resembles it: a curve separates two classes.
    """
    if count < 2:
        raise InputError(f"bent_clouds: expected at least 2 points; got {count}.")
    generator = np.random.default_rng(seed)
    first, second = count // 2, count - count // 2
    cloud = generator.normal(size=(first, 2)) * [0.6, 0.8] + [-1.0, 0.0]
    angle = generator.uniform(-0.45 * np.pi, 0.45 * np.pi, size=second)
    arc = np.stack([2.6 * np.cos(angle) - 1.0, 2.6 * np.sin(angle)], 1) + 0.3 * generator.normal(size=(second, 2))
    inputs = np.concatenate([cloud, arc])
    return LabelledPoints(torch.tensor(inputs), torch.tensor([0] * first + [1] * second))
