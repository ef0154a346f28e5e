"""The paper's LeNet-5: two convolutions with pooling, then 120, 84 and K units, all ReLU."""

from __future__ import annotations

import torch
from torch import nn


def lenet5(num_outputs: int = 10, channels: int = 1, side: int = 28, seed: int = 0) -> nn.Sequential:
    """conv 6@5, pool, conv 16@5, pool, 120, 84, K; the initial weights depend on `seed` alone.

    44,426 weights for MNIST; 62,006 for CIFAR-10 (3 channels, side 32).
    """
    spatial = ((side - 4) // 2 - 4) // 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * spatial**2, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_outputs),
        )
