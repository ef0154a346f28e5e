"""The data folder (DNN2GP_DATA, or the user's cache): downloads into it, and arrays read from it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.progress import track

VARIABLE = "DNN2GP_DATA"


def cache_folder() -> Path:
    """The folder of downloads: $DNN2GP_DATA, else $XDG_CACHE_HOME/dnn2gp, else ~/.cache/dnn2gp."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return _user_cache()


def find(name: str) -> Path | None:
    """The path of a file in the folder in DNN2GP_DATA or in the user's cache, if it exists."""
    for folder in (cache_folder(), _user_cache()):
        if (folder / name).is_file():
            return folder / name
    return None


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dnn2gp"


_CHUNK = 2**16
_SECONDS = 30.0


def fetch(url: str, what: str, files: str) -> bytes:
    """The content at `url`. `what` names the data set, and `files` the files that a user may provide instead."""
    try:
        with urlopen(url, timeout=_SECONDS) as answer:
            length = int(answer.headers.get("Content-Length") or 0)
            parts = iter(lambda: answer.read(_CHUNK), b"")
            content = b"".join(track(parts, f"downloading {what}", total=max(1, -(-length // _CHUNK))))
    except (OSError, HTTPException, ValueError) as error:
        raise missing(what, files, f"the download from {url} failed ({error})") from error
    if length and len(content) != length:
        raise missing(what, files, f"the download from {url} stopped after {len(content):,} of {length:,} bytes")
    return content


def check(content: bytes, expected: str, what: str, files: str, source: str) -> None:
    """Raise unless the content has the expected SHA-256."""
    found = sha256(content).hexdigest()
    if found != expected:
        raise missing(what, files, f"the content of {source} has SHA-256 {found[:16]}…; expected {expected[:16]}…")


def missing(what: str, files: str, why: str) -> InputError:
    """An error that says which files to put where."""
    return InputError(
        f"{what}: {files} not found in {cache_folder()}, and {why}. Put {files} there, or set {VARIABLE} to the "
        "folder that holds them."
    )


def read_arrays(path: Path, shapes: Mapping[str, tuple[int | None, ...]]) -> dict[str, np.ndarray]:
    """The named arrays as float64; None in a shape stands for any length."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: np.asarray(file[name], dtype=np.float64) for name in shapes}
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FileFormatError(f"{path} is not an npz file with the arrays {', '.join(shapes)} ({error}).") from error
    for name, shape in shapes.items():
        given = found[name].shape
        if len(given) != len(shape) or any(a is not None and a != b for a, b in zip(shape, given, strict=True)):
            raise FileFormatError(f"{path}: expected {name} of shape {shape}; got {given}.")
    return found
