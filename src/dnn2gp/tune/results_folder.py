"""A results folder: its purpose, a lock that the operating system releases after a kill, and what a kill leaves."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO

import psutil

from dnn2gp.support.errors import InputError, OtherWorkError
from dnn2gp.support.files import write_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_PURPOSE, _LOCK = "purpose.json", ".dnn2gp.lock"
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
def claimed(folder: Path) -> Iterator[None]:
    """Be the only process that works in `folder` inside the block; what a killed one left half-written is removed.

    Raises:
        InputError: If another process works in it.
    """
    with (folder / _LOCK).open("ab") as file:
        if not _try_lock(file, wait=False):
            raise InputError(
                f"out: expected a folder in which no other process works; got {folder}, in which one does. Wait for "
                "its end, or choose another folder (--out)."
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


def keep_purpose(
    folder: Path, purpose: Mapping[str, object], *, resume: bool, results: Iterable[str] = ("jobs/*.json",)
) -> str:
    """Create the folder with its purpose or, with `resume`, check that it has the same purpose.

    Args:
        folder: The results folder.
        purpose: What the results depend on.
        resume: Whether earlier results are to be used.
        results: Patterns of the files with results, which nobody can tell the purpose of if none is written down.

    Returns:
        A hash of the purpose, by which a result can name it.
    """
    described = folder / _PURPOSE
    text = json.dumps(purpose, sort_keys=True, indent=1, default=str)
    if described.exists():
        if not resume:
            raise InputError(
                f"{folder} holds an earlier tuning run. Continue it (resume=True; --resume), or choose another folder."
            )
        before = described.read_text(encoding="utf-8")
        if before != text:
            raise OtherWorkError(
                f"{folder} holds a different tuning run (it differs in {_differing(before, text)}; see {described}). "
                "Resume with the same settings, or choose another folder."
            )
    else:
        foreign = [path for pattern in results for path in sorted(folder.glob(pattern))]
        if foreign:
            raise OtherWorkError(
                f"{folder} holds results, such as {foreign[0].relative_to(folder)}, but no {_PURPOSE} that says which "
                "settings and data they belong to, so they cannot be used. Delete them, or choose another folder."
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_text(described, text)
    remove_stale(folder)
    return sha256(text.encode()).hexdigest()[:16]


def _differing(before: str, now: str) -> str:
    """The names of the entries that differ."""
    try:
        old, new = json.loads(before), json.loads(now)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    except (ValueError, AttributeError):
        return "contents"
    return ", ".join(names)
