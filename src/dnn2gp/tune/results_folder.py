"""A results folder: the purpose that it was started for, and a lock that the operating system releases after a kill."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dnn2gp.support.errors import InputError, OtherWorkError
from dnn2gp.support.files import write_text

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


_FILE = "purpose.json"


def keep_purpose(folder: Path, purpose: Mapping[str, object], *, resume: bool) -> None:
    """Create the folder with its purpose or, with `resume`, check that it has the same purpose."""
    described = folder / _FILE
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
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(described, text)


def _differing(before: str, now: str) -> str:
    """The names of the entries that differ."""
    try:
        old, new = json.loads(before), json.loads(now)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    except (ValueError, AttributeError):
        return "contents"
    return ", ".join(names)
