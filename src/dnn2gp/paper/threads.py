"""Many small trainings side by side: some in each thread, so that no operation is shared between threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, local
from typing import TypeVar

import torch

from dnn2gp.support.memory import chunks
from dnn2gp.support.progress import track
from dnn2gp.tune.jobs import one_thread

T = TypeVar("T")
_OWN, _NEVER = local(), Event()
# Members are parted into at least as many, however many threads there are: results are then the same everywhere.
_PARTS = 4


def in_threads(work: Callable[[slice], T], parts: Sequence[slice], description: str) -> list[T]:
    """What `work` makes of each part, as many at a time as torch has threads, each with one thread for itself.

    Threads that share small operations wait for each other in every one of them, which takes many times as long where
    the machine has other work.
    """
    workers, stop = torch.get_num_threads(), Event()

    def alone(part: slice) -> T:
        torch.set_num_threads(1)  # each thread has its own number
        _OWN.stop = stop
        return work(part)

    with one_thread(), ThreadPoolExecutor(workers) as pool:
        try:
            return list(track(pool.map(alone, parts), description, total=len(parts)))
        except BaseException:
            stop.set()  # the pool waits for its threads
            raise


def go_on() -> None:
    """For the work to ask between its steps: it ends here once another part has failed, or on Ctrl-C."""
    if getattr(_OWN, "stop", _NEVER).is_set():
        raise KeyboardInterrupt


def equal_parts(count: int, most: int) -> list[slice]:
    """0 … count − 1 in parts of at most `most`, and at most a quarter of them."""
    return list(chunks(count, max(1, min(most, -(-count // _PARTS)))))
