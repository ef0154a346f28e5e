"""One process at a time: a lock that is given back by the system if its process is killed."""

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
    """Wait for the lock on the file `path`, which is made and stays there, and hold it inside the block."""
    with path.open("ab") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield  # closing the file gives it back
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
