"""Files from their public source: with a bar, a checksum, and an error that says what to put where."""

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
    """The contents at `url`. `what` is the set that is looked for, `files` those that a user may put in its place."""
    try:
        with urlopen(url, timeout=_SECONDS) as answer:
            length = int(answer.headers.get("Content-Length") or 0)
            parts = iter(lambda: answer.read(_CHUNK), b"")
            content = b"".join(track(parts, f"downloading {what}", total=max(1, -(-length // _CHUNK))))
    except (OSError, HTTPException, ValueError) as error:
        raise missing(what, files, f"the download from {url} failed ({error})") from error
    if length and len(content) != length:
        raise missing(what, files, f"the download from {url} broke off after {len(content):,} of {length:,} bytes")
    return content


def check(content: bytes, expected: str, what: str, files: str, source: str) -> None:
    """Refuse contents with another SHA-256 than is known."""
    found = sha256(content).hexdigest()
    if found != expected:
        raise missing(what, files, f"what came from {source} is not it (SHA-256 {found[:16]}…, not {expected[:16]}…)")


def missing(what: str, files: str, why: str) -> InputError:
    """Which file to put where."""
    return InputError(
        f"{what}: {files} not in {cache_folder()}, and {why}. Put {files} there, or set {VARIABLE} to the folder "
        "that has it."
    )
