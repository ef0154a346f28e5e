"""The data folder: the one in DNN2GP_DATA, or the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

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
