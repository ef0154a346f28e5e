"""Atomic files: written under a temporary name in the target folder, then moved into place in one step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from dnn2gp.support.errors import InputError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the folder of `path`, then move it to `path`.

    If `write` fails or is interrupted (disk full, Ctrl-C), nothing partial remains and an old file at `path` is left as
    it was. The temporary name has the suffix of `path`, for writers that choose a format by the suffix.
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
    """Write `text` to `path` as UTF-8, completely or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`, completely or not at all."""
    write_whole(path, lambda place: place.write_bytes(content))


def prepare_folder(folder: Path) -> None:
    """Create the folder if it does not exist and check that it is writable, so that a long run cannot fail at its end.

    Raises:
        InputError: If the folder cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"Cannot write to the folder {folder}: {error.strerror or error}. Choose another folder."
        ) from error


def check_place(path: Path) -> Path:
    """`path` with links resolved (a link is kept and its target replaced), if a file can be written there."""
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
    """Wait until the content is on disk, so that the move cannot overtake it."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
