"""Folders that one process works in at a time: a lock that a kill releases, and what a kill leaves behind."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

from dnn2gp.support.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".dnn2gp.lock"
"""The name of the file by which a process claims a folder."""
# The temporary files of `support.files`, and the seconds for which one without a writer must have been unchanged.
_TEMPORARY, _SETTLED = ".dnn2gp-*", 5.0


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on the file `path`, which is created if necessary, inside the block."""
    with path.open("ab") as file:
        while not _try_lock(file, wait=True):
            time.sleep(0.05)
        yield  # closing the file releases it


@contextmanager
def claimed(folder: Path, argument: str = "out") -> Iterator[None]:
    """Be the only process that works in `folder` inside the block; what a killed one left half-written is removed.

    `argument` is what the user calls the folder.

    Raises:
        InputError: If another process works in it.
    """
    with (folder / LOCK).open("ab") as file:
        if not _try_lock(file, wait=False):
            hint = " (--out)" if argument == "out" else ""
            raise InputError(
                f"{argument}: expected a folder in which no other process works; got {folder}, in which one does. Wait "
                f"for its end, or choose another folder{hint}."
            )
        remove_stale(folder)
        yield


def _try_lock(file: IO[bytes], *, wait: bool) -> bool:
    """Whether the lock on the file could be had; with `wait`, the operating system may wait for it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            os.lseek(file.fileno(), 0, os.SEEK_SET)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
    except (BlockingIOError, PermissionError):
        return False
    return True


def remove_stale(folder: Path) -> list[Path]:
    """Remove and return the temporary files in a folder and its subfolders whose writers were killed.

    A file is kept if a process of this machine has it open, or if it changed in the last seconds: its writer may be
    about to move it into place.
    """
    before = time.time() - _SETTLED
    found = [*folder.glob(_TEMPORARY), *folder.glob(f"*/{_TEMPORARY}")]
    old = [path for path in found if path.is_file() and path.stat().st_mtime < before]
    busy = _open_files() if old else set()
    stale = [path for path in old if path.resolve() not in busy]
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def _open_files() -> set[Path]:
    """The files that the processes of this machine have open, of those that we may look at."""
    found: set[Path] = set()
    for process in psutil.process_iter():
        try:
            found.update(Path(file.path) for file in process.open_files())
        except (psutil.Error, OSError):
            continue
    return found


def differing(before: str, now: str) -> str:
    """The names of the entries in which two JSON objects differ."""
    try:
        old, new = json.loads(before), json.loads(now)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    except (ValueError, AttributeError):
        return "contents"
    return ", ".join(names)
