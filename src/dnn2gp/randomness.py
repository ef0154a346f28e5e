"""Random numbers come from a generator of the user's, or from a fresh one: never from the global state."""

from __future__ import annotations

import torch
from torch import Tensor


def own_generator(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """The given generator, or a new one with a fresh seed, so that the global RNG is never drawn from."""
    if generator is not None:
        return generator
    fresh = torch.Generator(device=device)
    fresh.seed()
    return fresh


def normal(shape: tuple[int, ...], generator: torch.Generator | None, like: Tensor) -> Tensor:
    """ε ~ N(0, I) in float64 on the device of `like`."""
    generator = own_generator(generator, like.device)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device=like.device)
