"""MNIST, Fashion-MNIST and CIFAR-10, from NAME.npz with uint8 arrays x_train, y_train, x_test and y_test.

If the file does not exist, it is downloaded from OpenML.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.datasets import fetch_openml
from torch import Tensor

from dnn2gp.paper.datasets.folder import VARIABLE, cache_folder, find
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.files import write_whole
from dnn2gp.support.progress import waiting

_KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Source:
    """Where a set of images comes from, and its sizes and classes."""

    openml: str
    shape: tuple[int, ...]
    num_train: int
    num_test: int
    classes: tuple[str, ...]
    checksum: str
    """SHA-256 of all images and labels, training set first."""


_CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SOURCES = {
    "mnist": Source(
        "mnist_784",
        (28, 28),
        60_000,
        10_000,
        tuple("0123456789"),
        "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
    ),
    "fashion_mnist": Source(
        "Fashion-MNIST",
        (28, 28),
        60_000,
        10_000,
        _CLOTHES,
        "ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f",
    ),
    "cifar10": Source(
        "CIFAR_10",
        (32, 32, 3),
        50_000,
        10_000,
        _THINGS,
        "80387ddb9a0edf3fc4a964ee3770296169bb26a651050df20035579673099660",
    ),
}


@dataclass(frozen=True, eq=False)
class Images:
    """Training and test images in [0, 1], N × C × H × W, and their labels."""

    train_images: Float[Tensor, "N C H W"]
    train_labels: Int[Tensor, " N"]
    test_images: Float[Tensor, "M C H W"]
    test_labels: Int[Tensor, " M"]
    classes: tuple[str, ...] = ()
    """The names of the classes."""

    def normalised(self, mean: Sequence[float], std: Sequence[float]) -> Images:
        """(x − mean) / std for each channel."""
        centre, scale = (torch.tensor(own)[:, None, None] for own in (mean, std))
        train, test = ((own - centre).div_(scale) for own in (self.train_images, self.test_images))
        return replace(self, train_images=train, test_images=test)

    def of_classes(self, chosen: Sequence[int]) -> Images:
        """The examples of these classes, relabelled 0, 1, … in this order."""
        table = torch.full((int(self.train_labels.max()) + 1,), -1)
        table[list(chosen)] = torch.arange(len(chosen))
        train, test = table[self.train_labels], table[self.test_labels]
        names = tuple(self.classes[own] for own in chosen) if self.classes else ()
        own = self.train_images[train >= 0], train[train >= 0], self.test_images[test >= 0], test[test >= 0]
        return Images(*own, names)


def load_images(name: str) -> Images:
    """The images by name: "mnist", "fashion_mnist" or "cifar10"."""
    if name not in SOURCES:
        raise InputError(f"data: expected one of {sorted(SOURCES)}; got {name!r}.")
    path = find(f"{name}.npz") or _download(name)
    x_train, y_train, x_test, y_test = _read(path, SOURCES[name])
    return Images(_pixels(x_train), _labels(y_train), _pixels(x_test), _labels(y_test), SOURCES[name].classes)


def _read(path: Path, source: Source) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = [file[key] for key in _KEYS]
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FileFormatError(
            f"{path} is not a complete set of images ({_reason(error)}). Delete it to download it again, or replace "
            f"it with an npz file with the arrays {', '.join(_KEYS)}."
        ) from error
    for key, array in zip(_KEYS, arrays, strict=True):
        shape = source.shape if key.startswith("x") else ()
        if array.dtype != np.uint8 or array.shape[1:] != shape or not len(array):
            raise FileFormatError(
                f"{path}: expected {key} as uint8 of shape (N, {', '.join(map(str, shape))}); got {array.dtype} of "
                f"shape {array.shape}. Delete the file to download it again."
            )
    return arrays


def _reason(error: Exception) -> str:
    """NumPy's message, without its advice to allow pickles."""
    return "it is not an npz file" if "pickle" in str(error) else str(error)


def _download(name: str) -> Path:
    """Download from OpenML, which has the training images first, into the cache."""
    source, target = SOURCES[name], cache_folder() / f"{name}.npz"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with waiting(f"downloading {name} from OpenML"), TemporaryDirectory() as once, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about failed attempts; the last one is reported below
            pixels, classes = fetch_openml(
                source.openml, version=1, data_home=once, return_X_y=True, as_frame=False, parser="liac-arff"
            )
    except Exception as error:  # network errors are of many kinds
        raise InputError(
            f"{name}: not found in {target.parent}, and the download from OpenML failed ({error}). Put {name}.npz with "
            f"the uint8 arrays {', '.join(_KEYS)} (images N × {' × '.join(map(str, source.shape))}, labels N) there, "
            f"or set {VARIABLE} to its folder."
        ) from error
    images, labels = _arranged(pixels, source).astype(np.uint8), classes.astype(np.uint8)
    if len(images) != source.num_train + source.num_test:
        raise FileFormatError(
            f"{name}: expected {source.num_train + source.num_test} images from OpenML; got {len(images)}."
        )
    train, test = slice(0, source.num_train), slice(source.num_train, None)
    arrays = dict(zip(_KEYS, (images[train], labels[train], images[test], labels[test]), strict=True))
    if checksum(list(arrays.values())) != source.checksum:
        raise FileFormatError(
            f"{name}: the {len(images)} images from OpenML have an unexpected checksum. Put {name}.npz with the uint8 "
            f"arrays {', '.join(_KEYS)} into {target.parent}, or set {VARIABLE} to its folder."
        )
    write_whole(target, lambda place: np.savez_compressed(place, **arrays))
    return target


def checksum(arrays: Sequence[np.ndarray]) -> str:
    """The SHA-256 of the bytes of all arrays, one after another."""
    found = sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _arranged(pixels: np.ndarray, source: Source) -> np.ndarray:
    """Rows of pixels as images; OpenML stores one colour after another."""
    if len(source.shape) == 2:
        return pixels.reshape(-1, *source.shape)
    height, width, colours = source.shape
    return pixels.reshape(-1, colours, height, width).transpose(0, 2, 3, 1)


def _pixels(images: np.ndarray) -> Float[Tensor, "N C H W"]:
    """Images in [0, 1] with channels first; transposed as bytes, which takes less memory."""
    raw = torch.from_numpy(images)
    raw = raw.unsqueeze(1) if raw.ndim == 3 else raw.permute(0, 3, 1, 2).contiguous()
    return raw.float().div_(255)


def _labels(labels: np.ndarray) -> Int[Tensor, " N"]:
    return torch.from_numpy(labels.astype(np.int64))
