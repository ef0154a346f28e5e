"""The latent function f at some inputs: what every prediction is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Latent:
    """f(x) ~ N(f_w(x) + J(x)(μ − w), J(x) Σ̃ J(x)ᵀ), input by input."""

    outputs: Float[Tensor, "N K"]
    """f_w(x), the output of the network itself."""
    shift: Float[Tensor, "N K"]
    """J(x)(μ − w), zero at a minimum."""
    covariance: Float[Tensor, "N K K"]
    """J(x) Σ̃ J(x)ᵀ."""

    @staticmethod
    def joined(parts: Sequence[Latent]) -> Latent:
        """Several chunks of inputs as one."""
        if len(parts) == 1:
            return parts[0]
        return Latent(
            torch.cat([part.outputs for part in parts]),
            torch.cat([part.shift for part in parts]),
            torch.cat([part.covariance for part in parts]),
        )
