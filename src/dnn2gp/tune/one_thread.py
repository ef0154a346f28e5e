"""One thread for torch and BLAS inside a block, even if several workers are threads of one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, ClassVar

import torch

from dnn2gp.support.optional import needs_extra

if TYPE_CHECKING:
    from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """Run with one thread, so that parallel workers do not compete and results do not depend on their number.

    If workers are threads of one process, the first sets the limit and the last restores it.
    """
    _Threads.enter()
    try:
        yield
    finally:
        _Threads.leave()


class _Threads:
    """The number of threads inside `one_thread`, and the limits before."""

    _lock: ClassVar[Lock] = Lock()
    _inside: ClassVar[int] = 0
    _before: ClassVar[int] = 1
    _limits: ClassVar[threadpool_limits | None] = None

    @classmethod
    def enter(cls) -> None:
        with needs_extra("tune", "Tuning in parallel"):
            from threadpoolctl import threadpool_limits

        with cls._lock:
            if cls._inside == 0:
                cls._before, cls._limits = torch.get_num_threads(), threadpool_limits(1)
            cls._inside += 1
        torch.set_num_threads(1)  # the number is set per thread

    @classmethod
    def leave(cls) -> None:
        with cls._lock:
            cls._inside -= 1
            if cls._inside == 0 and cls._limits is not None:
                cls._limits.restore_original_limits()
            torch.set_num_threads(cls._before)
