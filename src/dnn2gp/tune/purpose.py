"""The purpose of a results folder, stored with it, so that different work is not resumed there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dnn2gp.support.errors import InputError, OtherWorkError
from dnn2gp.support.files import write_text

_FILE = "purpose.json"


def keep_purpose(folder: Path, purpose: Mapping[str, object], *, resume: bool) -> None:
    """Create the folder with its purpose or, with `resume`, check that it has the same purpose."""
    described = folder / _FILE
    text = json.dumps(purpose, sort_keys=True, indent=1, default=str)
    if described.exists():
        if not resume:
            raise InputError(
                f"{folder} holds an earlier tuning. Continue it (resume=True; --resume), or choose another folder."
            )
        before = described.read_text(encoding="utf-8")
        if before != text:
            raise OtherWorkError(
                f"{folder} holds a different tuning (differing in {_differing(before, text)}; see {described}). Resume "
                "with the same settings, or choose another folder."
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
