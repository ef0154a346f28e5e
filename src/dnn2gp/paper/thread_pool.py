"""Many small training runs in parallel: each thread takes some of them, so that threads never share one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, local
from typing import TypeVar

import torch

from dnn2gp.support.memory import chunks
from dnn2gp.support.progress import track
from dnn2gp.tune.one_thread import one_thread

T = TypeVar("T")
_OWN, _NEVER = local(), Event()
# The least number of parts, independent of the number of threads, so that results are the same on every machine.
_PARTS = 4


def in_threads(work: Callable[[slice], T], parts: Sequence[slice], description: str) -> list[T]:
    """The results of `work` for each part, run by as many threads as torch has, with one thread per operation.

    Threads that share small operations wait for one another in each of them, which takes many times as long on a
    machine that is busy.
    """
    workers, stop = torch.get_num_threads(), Event()

    def alone(part: slice) -> T:
        torch.set_num_threads(1)  # the number is set per thread
        _OWN.stop = stop
        return work(part)

    with one_thread(), ThreadPoolExecutor(workers) as pool:
        try:
            return list(track(pool.map(alone, parts), description, total=len(parts)))
        except BaseException:
            stop.set()  # the pool waits for its threads
            raise


def check_stopped() -> None:
    """Called by the work between its steps: raises once another part has failed, or on Ctrl-C."""
    if getattr(_OWN, "stop", _NEVER).is_set():
        raise KeyboardInterrupt


def equal_parts(count: int, most: int) -> list[slice]:
    """0 … count − 1 in parts of at most `most`, and at least four parts."""
    return list(chunks(count, max(1, min(most, -(-count // _PARTS)))))
