"""Snelson's one-dimensional regression: 200 examples, with or without those in a gap (Fig. 3)."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.paper.datasets.folder import cache_folder, check, fetch, find, missing
from dnn2gp.support.errors import FileFormatError
from dnn2gp.support.files import write_bytes

FOLDER, _INPUTS, _OUTPUTS = "snelson", "train_inputs", "train_outputs"
_URL = "https://www.gatsby.ucl.ac.uk/~snelson/SPGP_dist.zip"
# Checksums of the numbers, rounded to seven decimals; white space and line ends do not count.
_CHECKSUMS = {
    _INPUTS: "a941dc118d0dca710b739887fd578c38de81fbb2945af413e4fcd06772a5bac3",
    _OUTPUTS: "e8bb414cdaf79a9e683ede54cea49c0e21fd78dded25d558a42475b6ad7a5a5f",
}
_COUNT = 200


@dataclass(frozen=True, eq=False)
class SnelsonData:
    """Inputs and targets, float64."""

    inputs: Float[Tensor, "N 1"]
    targets: Float[Tensor, "N 1"]

    def without(self, low: float, high: float) -> SnelsonData:
        """The examples outside a closed interval; in the paper it is 1.5 to 3."""
        left = ((self.inputs < low) | (self.inputs > high))[:, 0]
        return SnelsonData(self.inputs[left], self.targets[left])


def load_snelson() -> SnelsonData:
    """The 200 training examples, from the data folder or from the author's page."""
    columns = [_read(name) for name in (_INPUTS, _OUTPUTS)]
    inputs, targets = (torch.tensor(column)[:, None] for column in columns)
    return SnelsonData(inputs, targets)


def _read(name: str) -> np.ndarray:
    path = find(f"{FOLDER}/{name}")
    if path is None:
        _download()
        path = cache_folder() / FOLDER / name
    try:
        column = np.loadtxt(path, dtype=np.float64)
    except ValueError as error:
        raise FileFormatError(
            f"{path}: expected one number per line ({error}). Delete it to download it again."
        ) from error
    if column.shape != (_COUNT,) or not np.isfinite(column).all():
        raise FileFormatError(f"{path}: expected {_COUNT} numbers, one per line; got an array of shape {column.shape}.")
    return column


def _download() -> None:
    """Download both files, atomically, if their checksums are right."""
    files = f"{FOLDER}/{_INPUTS} and {FOLDER}/{_OUTPUTS}"
    content = fetch(_URL, "Snelson's regression", files)
    found = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in _CHECKSUMS:
                (member,) = [own for own in archive.namelist() if own.rsplit("/", 1)[-1] == name]
                found[name] = archive.read(member)
    except (zipfile.BadZipFile, ValueError) as error:
        raise missing("Snelson's regression", files, f"the content of {_URL} does not hold them ({error})") from error
    for name, expected in _CHECKSUMS.items():
        check(_canonical(found[name]), expected, "Snelson's regression", files, _URL)
    folder = cache_folder() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        write_bytes(folder / name, text)


def _canonical(text: bytes) -> bytes:
    """The numbers in a canonical form."""
    try:
        return " ".join(f"{float(word):.7e}" for word in text.split()).encode()
    except ValueError:
        return text
