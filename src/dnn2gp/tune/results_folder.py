"""A results folder: what its results depend on, so that only results of the same settings are used again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from dnn2gp.support.errors import InputError, OtherWorkError
from dnn2gp.support.files import write_text
from dnn2gp.support.folders import differing, remove_stale

_PURPOSE = "purpose.json"


def keep_purpose(
    folder: Path, purpose: Mapping[str, object], *, resume: bool, results: Iterable[str] = ("jobs/*.json",)
) -> str:
    """Create the folder with its purpose or, with `resume`, check that it has the same purpose.

    Args:
        folder: The results folder.
        purpose: What the results depend on.
        resume: Whether earlier results are to be used.
        results: Patterns of the files with results, which nobody can tell the purpose of if none is written down.

    Returns:
        A hash of the purpose, by which a result can name it.
    """
    described = folder / _PURPOSE
    text = json.dumps(purpose, sort_keys=True, indent=1, default=str)
    if described.exists():
        if not resume:
            raise InputError(
                f"{folder} holds an earlier tuning run. Continue it (resume=True; --resume), or choose another folder."
            )
        before = described.read_text(encoding="utf-8")
        if before != text:
            raise OtherWorkError(
                f"{folder} holds a different tuning run (it differs in {differing(before, text)}; see {described}). "
                "Resume with the same settings, or choose another folder."
            )
    else:
        foreign = [path for pattern in results for path in sorted(folder.glob(pattern))]
        if foreign:
            raise OtherWorkError(
                f"{folder} holds results, such as {foreign[0].relative_to(folder)}, but no {_PURPOSE} that says which "
                "settings and data they belong to, so they cannot be used. Delete them, or choose another folder."
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_text(described, text)
    remove_stale(folder)
    return sha256(text.encode()).hexdigest()[:16]
