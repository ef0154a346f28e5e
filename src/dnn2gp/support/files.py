"""Files appear whole or not at all: written beside their place under another name, then moved there in one step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from dnn2gp.support.errors import InputError


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file in the folder of `path`, then put it in the place of `path`.

    If `write` fails or is interrupted (disk full, Ctrl-C), nothing partial is left and an old file at `path` stays as
    it was. The temporary name has the ending of `path`, so that writers that go by the ending do the same with it.
    """
    target = check_place(path)
    temporary = target.with_name(f".dnn2gp-{uuid4().hex}{target.suffix}")
    try:
        write(temporary)
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """A text, or nothing, at `path`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """All of these bytes, or nothing, at `path`."""

    def write(place: Path) -> None:
        place.write_bytes(content)

    write_whole(path, write)


def check_place(path: Path) -> Path:
    """`path` with links followed (the link stays, its target is replaced), if a file can be put there."""
    target = path.resolve()
    folder = target.parent
    if not folder.exists():
        raise InputError(f"Cannot write {path}: the folder {folder} does not exist. Create it first.")
    if not folder.is_dir():
        raise InputError(f"Cannot write {path}: {folder} is not a folder.")
    if target.is_dir():
        raise InputError(f"Cannot write {path}: it is a folder. Give the name of a file.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"Cannot write {path}: no permission to write to the folder {folder}.")
    return target


def _flush_to_disk(path: Path) -> None:
    """Wait until the contents are on the disk, so that the move never comes before them."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
