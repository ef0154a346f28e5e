"""A lock between processes, which the operating system releases if its holder is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on the file `path`, which is created if necessary, inside the block."""
    with path.open("ab") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield  # closing the file releases it
            return
        _wait_on_windows(file.fileno())
        yield


def _wait_on_windows(file: int) -> None:
    import msvcrt

    while True:
        try:
            os.lseek(file, 0, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
            return
        except OSError:
            time.sleep(0.05)
