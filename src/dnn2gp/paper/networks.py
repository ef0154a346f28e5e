"""The networks of the paper: LeNet-5, and the erf network whose kernels are known in the infinite limit."""

from __future__ import annotations

from math import pi

import torch
from jaxtyping import Float
from torch import Tensor, nn


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


class ErfNetwork(nn.Module):
    """f(x) = vᵀ erf(U x̃), x̃ = (1, x), with U ~ N(0, 1) and v ~ N(0, 1/H) for H units.

    As H grows, its kernels at random weights, with these variances as the prior V, become (Williams, 1997)

        κ_v(x, x') = (2/π) arcsin( 2 x̃ᵀx̃' / √((1 + 2 x̃ᵀx̃)(1 + 2 x̃'ᵀx̃')) )                          v alone
        κ(x, x') = κ_v(x, x') + (4/π) x̃ᵀx̃' / √((1 + 2 x̃ᵀx̃)(1 + 2 x̃'ᵀx̃') − 4 (x̃ᵀx̃')²)                all weights
    """

    def __init__(self, num_inputs: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        drawn = torch.randn(width, num_inputs + 2, generator=generator, dtype=torch.float64)
        self.hidden, self.output = nn.Linear(num_inputs, width).double(), nn.Linear(width, 1, bias=False).double()
        with torch.no_grad():
            self.hidden.weight.copy_(drawn[:, :num_inputs])
            self.hidden.bias.copy_(drawn[:, num_inputs])
            self.output.weight.copy_(drawn[None, :, num_inputs + 1] / width**0.5)

    def forward(self, x: Float[Tensor, "N I"]) -> Float[Tensor, "N 1"]:
        """vᵀ erf(U x̃)."""
        return self.output(torch.erf(self.hidden(x)))

    @property
    def prior_precision(self) -> dict[str, float]:
        """V⁻¹ of each layer: 1, and H."""
        return {"hidden": 1.0, "output": float(self.output.in_features)}


def infinite_kernel(
    x: Float[Tensor, "N I"], other: Float[Tensor, "M I"], *, last_layer: bool = False
) -> Float[Tensor, "N M"]:
    """κ for infinitely many units; with `last_layer`, Williams' kernel κ_v."""
    a, b = (torch.cat([torch.ones_like(part[:, :1]), part], 1) for part in (x, other))
    product = a @ b.T
    scale = (1 + 2 * a.square().sum(1))[:, None] * (1 + 2 * b.square().sum(1))
    kernel = 2 / pi * torch.asin(2 * product / scale.sqrt())
    return kernel if last_layer else kernel + 4 / pi * product / (scale - 4 * product.square()).sqrt()
