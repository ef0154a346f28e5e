"""JSON from a file that may be damaged or hostile: bounded in depth and digits, with every defect a FileFormatError."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from dnn2gp.support.errors import FileFormatError

MAX_DEPTH = 200
"""The number of lists and objects inside one another that is read and written."""
MAX_DIGITS = 1000
"""The number of digits of an integer that is read and written."""
_MESSAGE_LENGTH = 80
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def parsed_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON text; `where` names it in messages.

    Raises:
        FileFormatError: If it is not JSON, is nested too deeply, or has a key twice or an integer with too many digits.
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        _check_depth(text, where)
        return json.loads(text, parse_int=_integer, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{where}: expected JSON; got {short(text)} ({error}). Write the file again.") from error


def short(value: object) -> str:
    """A value for messages, whose beginning is enough if it is long."""
    text = repr(value[: 2 * _MESSAGE_LENGTH] if isinstance(value, str | bytes | list | tuple) else value)
    return text if len(text) <= _MESSAGE_LENGTH else f"{text[:_MESSAGE_LENGTH]} …"


def _check_depth(text: str, where: str) -> None:
    """Refuse lists and objects that are nested too deeply, which the parser would follow with as many calls."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > MAX_DEPTH:
            raise FileFormatError(
                f"{where}: expected JSON with at most {MAX_DEPTH} levels; got more. Write the file again."
            )


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits; at most {MAX_DIGITS} are read")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"the key {short(max(counts, key=lambda name: counts[name]))} occurs twice")
    return found
