"""Files: written under a temporary name and moved into place in one step, and read only where they are regular."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from dnn2gp.support.errors import FileFormatError, InputError


def as_path(path: object) -> Path:
    """The path that a user gave, if it can be one."""
    if not isinstance(path, str | PathLike):
        raise InputError(f"path: expected the name of a file; got {type(path).__name__}.")
    found = os.fspath(path)
    if not isinstance(found, str) or "\0" in found:
        raise InputError(f"path: expected the name of a file as text without null characters; got {found!r}.")
    return Path(found)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the folder of `path`, then move it to `path`.

    If `write` fails or is interrupted (disk full, Ctrl-C), nothing partial remains and an old file at `path` is left as
    it was. The temporary name has the suffix of `path`, for writers that choose a format by the suffix. A file that is
    replaced passes on its mode; that of a new file follows the umask.
    """
    target = check_place(path)
    temporary = target.with_name(f".dnn2gp-{uuid4().hex}{target.suffix}")
    try:
        mode = _created(temporary, private=target.exists())
        write(temporary)
        _flush_to_disk(temporary)
        move_into_place(temporary, target, mode)
    finally:
        temporary.unlink(missing_ok=True)


def move_into_place(temporary: Path, target: Path, mode: int | None = None) -> None:
    """Replace the regular file `target`, whose mode (and, as root, owner) is kept, or create it with `mode`."""
    check_place(target)
    if target.exists():
        old = target.stat()
        new = temporary.stat()
        if hasattr(os, "chown") and os.geteuid() == 0 and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.chown(temporary, old.st_uid, old.st_gid)
        mode = stat.S_IMODE(old.st_mode)
    if mode is not None:
        temporary.chmod(mode)
    os.replace(temporary, target)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, completely or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`, completely or not at all."""
    write_whole(path, lambda place: place.write_bytes(content))


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, unbuffered; anything else is refused, without waiting for it.

    Its kind is looked up before it is opened, since opening a device can have effects, and again afterwards, since it
    may have been exchanged in between.

    Raises:
        FileFormatError: If it is a folder, a FIFO, a socket or a device.
        OSError: If it does not exist or may not be read.
    """
    _refuse_special(path, path.stat().st_mode)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        _refuse_special(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path) -> bytes:
    """The content of a regular file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


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
    """`path` with links resolved (a link is kept and its target replaced), if a regular file can be written there."""
    kind = _kind_at(path)
    if kind == "a folder":
        raise InputError(f"Cannot write {path}: it is a folder. Give the name of a file.")
    if kind is not None:
        raise InputError(f"Cannot write {path}: expected a regular file or a new name; got {kind}. Choose another.")
    target = path.resolve()
    folder = target.parent
    if not folder.exists():
        raise InputError(f"Cannot write {path}: the folder {folder} does not exist. Create it first.")
    if not folder.is_dir():
        raise InputError(f"Cannot write {path}: {folder} is not a folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"Cannot write {path}: no permission to write to the folder {folder}.")
    return target


_KINDS: dict[int, str] = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _kind(mode: int) -> str | None:
    """What a file is in words, or None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "a special file")


def _kind_at(path: Path) -> str | None:
    """What is at `path` behind all links, or None if that is a regular file or nothing."""
    try:
        return _kind(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a ring of links, a name that is too long, a folder that may not be entered
        raise InputError(f"Cannot write {path}: {error.strerror or error}. Choose another.") from error


def _refuse_special(path: Path, mode: int) -> None:
    kind = _kind(mode)
    if kind is not None:
        raise FileFormatError(f"{path} is {kind}; expected a regular file that dnn2gp wrote. Give the path of one.")


def _created(path: Path, *, private: bool) -> int:
    """Create an empty file and return its mode: that of the umask, or one for its owner alone."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def _flush_to_disk(path: Path) -> None:
    """Wait until the content is on disk, so that the move cannot overtake it."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
