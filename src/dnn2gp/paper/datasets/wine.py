"""Red Wine Quality (UCI) in twenty splits, with inputs and target standardised on each training set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dnn2gp.paper.datasets.folder import cache_folder, check, fetch, find, read_arrays
from dnn2gp.paper.datasets.synthetic import Draws
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.files import write_bytes

SPLITS, TABLE = "wine_splits_standardised.npz", "winequality-red.csv"
_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality/winequality-red.csv"
_CHECKSUM = "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e"
_ROWS, _COLUMNS, _TEST = 1599, 12, 160
PAPERS = "the paper's splits"


def wine_splits(count: int = 20) -> Draws:
    """The paper's splits if their file is in the data folder, otherwise random ones."""
    path = find(SPLITS)
    if path is None:
        return random_splits(read_table(), count)
    shapes: dict[str, tuple[int | None, ...]] = {
        "x_train": (None, None, 11),
        "y_train": (None, None),
        "x_test": (None, None, 11),
        "y_test": (None, None),
        "y_scale": (None,),
    }
    arrays = {name: torch.from_numpy(array) for name, array in read_arrays(path, shapes).items()}
    if count > len(arrays["x_train"]):
        raise InputError(f"count: expected at most the {len(arrays['x_train'])} splits in {path}; got {count}.")
    x_train, y_train, x_test, y_test = (arrays[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    draws = Draws(x_train, y_train[..., None], x_test, y_test[..., None], arrays["y_scale"], PAPERS)
    return draws.take(count)


def read_table() -> np.ndarray:
    """The 1599 × 12 table with quality in the last column, from the data folder or from the UCI repository."""
    path = find(TABLE) or _download()
    try:
        table = np.loadtxt(path, delimiter=";", skiprows=1)
    except ValueError as error:
        raise FileFormatError(
            f"{path} is not the table of Red Wine Quality ({error}). Delete it to download it again."
        ) from error
    if table.shape != (_ROWS, _COLUMNS):
        raise FileFormatError(f"{path}: expected {_ROWS} rows of {_COLUMNS} numbers; got {table.shape}.")
    return table


def random_splits(table: np.ndarray, count: int, seed: int = 0) -> Draws:
    """Random splits into 1439 training and 160 test rows, standardised on the training rows."""
    generator, parts, scales = np.random.default_rng(seed), [], []
    for _ in range(count):
        order = generator.permutation(len(table))
        train, test = table[order[_TEST:]], table[order[:_TEST]]
        mean, scale = train.mean(0), train.std(0)
        parts.append(((train - mean) / scale, (test - mean) / scale))
        scales.append(scale[-1])
    train, test = (torch.from_numpy(np.stack([pair[side] for pair in parts])) for side in (0, 1))
    scale, source = torch.from_numpy(np.array(scales)), f"random splits (seed {seed})"
    return Draws(train[..., :-1], train[..., -1:], test[..., :-1], test[..., -1:], scale, source)


def _download() -> Path:
    target = cache_folder() / TABLE
    content = fetch(_URL, "Red Wine Quality", TABLE)
    check(content, _CHECKSUM, "Red Wine Quality", TABLE, _URL)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, content)
    return target
