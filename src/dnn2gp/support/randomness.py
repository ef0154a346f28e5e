"""Random numbers from the user's generator or a fresh one, never from the global state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

# Rows per piece of a matrix that several processes draw: torch draws 16 numbers at a time, and at least 16.
_ROWS, _FEWEST = 4096, 16

USER_STATE = RLock()
"""Held while a user's own module is read or run, and while global random generators are saved and restored.

A single lock for all of them cannot deadlock with itself, and it is needed rarely: networks run on private copies, and
almost none of them draws random numbers.
"""


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


def normal_rows(
    total: int, own: slice, num_columns: int, generator: torch.Generator, like: Tensor
) -> Float[Tensor, "m s"]:
    """Some rows of a `total` × `num_columns` matrix ~ N(0, I), in the dtype and on the device of `like`.

    Processes whose generators are in the same state draw the rows of one matrix, each its own, and leave the generators
    in the same state. On a CPU, it is the matrix that a single process would draw at once.
    """
    settings = {"generator": generator, "dtype": like.dtype, "device": like.device}
    if own == slice(0, total):
        return torch.randn(total, num_columns, **settings)
    result = torch.empty(own.stop - own.start, num_columns, dtype=like.dtype, device=like.device)
    starts = list(range(0, max(1, total - _FEWEST), _ROWS))  # the last piece has more than a few rows
    for start, stop in zip(starts, [*starts[1:], total], strict=True):
        drawn = torch.randn(stop - start, num_columns, **settings)
        low, high = max(start, own.start), min(stop, own.stop)
        if low < high:
            result[low - own.start : high - own.start] = drawn[low - start : high - start]
    return result


@contextmanager
def global_states_kept(device: torch.device | None = None) -> Iterator[Callable[[], bool]]:
    """Restore the global generators of torch, NumPy and Python after the block, which runs the user's code.

    Yields a function that says whether any of them has been drawn from since. Only one thread at a time may be inside:
    two that save and restore in turns would leave the generators in the wrong state.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with USER_STATE:
        before = _states(devices)
        with torch.random.fork_rng(devices):
            try:
                yield lambda: not all(map(_equal, before, _states(devices)))
            finally:
                random.setstate(before[0])
                np.random.set_state(before[1])


def _states(devices: list[torch.device]) -> list[Any]:
    """The states of Python's, NumPy's and torch's generators, and of those of CUDA devices."""
    cuda = [torch.cuda.get_rng_state(device) for device in devices]
    return [random.getstate(), np.random.get_state(), torch.get_rng_state(), *cuda]


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    return first == second
