"""The arrays of the paper's regressions, read from an npz file in the data folder and checked."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dnn2gp.support.errors import FileFormatError


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
