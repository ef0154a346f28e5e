"""What a folder of finished work is of: nothing else is gone on with in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dnn2gp.support.errors import InputError, OtherWorkError
from dnn2gp.support.files import write_text

_FILE = "purpose.json"


def keep_purpose(folder: Path, purpose: Mapping[str, object], *, resume: bool) -> None:
    """Make the folder and note its purpose; or, with `resume`, check that it has this one."""
    described = folder / _FILE
    text = json.dumps(purpose, sort_keys=True, indent=1, default=str)
    if described.exists():
        if not resume:
            raise InputError(
                f"{folder} holds an earlier tuning. Go on with it (resume=True; --resume), or take another folder."
            )
        before = described.read_text(encoding="utf-8")
        if before != text:
            raise OtherWorkError(
                f"{folder} holds another tuning (other {_differing(before, text)}; see {described}). Resume with the "
                "settings it had, or take another folder."
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(described, text)


def _differing(before: str, now: str) -> str:
    """The names of what is not the same."""
    try:
        old, new = json.loads(before), json.loads(now)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    except (ValueError, AttributeError):
        return "contents"
    return ", ".join(names)
