"""Random numbers from the user's generator or a fresh one, never from the global state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def own_generator(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """The given generator, or a new one with a fresh seed: the global generator is never used."""
    if generator is not None:
        return generator
    fresh = torch.Generator(device=device)
    fresh.seed()
    return fresh


def normal(shape: tuple[int, ...], generator: torch.Generator | None, like: Tensor) -> Tensor:
    """Samples ε ~ N(0, I), in float64 and on the device of `like`."""
    generator = own_generator(generator, like.device)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device=like.device)


@contextmanager
def global_states_kept(device: torch.device | None = None) -> Iterator[None]:
    """Restore the global generators of torch, NumPy and Python after the block, which runs the user's code."""
    devices = [device] if device is not None and device.type == "cuda" else []
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
