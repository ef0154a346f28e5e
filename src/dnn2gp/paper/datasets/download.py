"""Downloads with a progress bar, a checksum, and errors that say which file to put where."""

from __future__ import annotations

from hashlib import sha256
from http.client import HTTPException
from urllib.request import urlopen

from dnn2gp.paper.datasets.folder import VARIABLE, cache_folder
from dnn2gp.support.errors import InputError
from dnn2gp.support.progress import track

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
        f"{what}: {files} not found in {cache_folder()}, and {why}. Put {files} there, or set {VARIABLE} to their "
        "folder."
    )
