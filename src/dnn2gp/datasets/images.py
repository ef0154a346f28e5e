"""MNIST, from NAME.npz with uint8 arrays x_train, y_train, x_test and y_test; from OpenML if it is not there."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.datasets import fetch_openml
from torch import Tensor

from dnn2gp.datasets.folder import VARIABLE, cache_folder, find
from dnn2gp.errors import FileFormatError, InputError
from dnn2gp.files import write_whole

_KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Source:
    """Where a set of images comes from, and what it is like."""

    openml: str
    shape: tuple[int, ...]
    num_train: int
    num_test: int


SOURCES = {"mnist": Source("mnist_784", (28, 28), 60_000, 10_000)}


@dataclass(frozen=True, eq=False)
class Images:
    """Images in [0, 1], N × C × side × side, and labels, in two parts."""

    train_images: Float[Tensor, "N C H W"]
    train_labels: Int[Tensor, " N"]
    test_images: Float[Tensor, "M C H W"]
    test_labels: Int[Tensor, " M"]


def load_images(name: str) -> Images:
    """The images by name: "mnist"."""
    if name not in SOURCES:
        raise InputError(f"data: expected one of {sorted(SOURCES)}; got {name!r}.")
    path = find(f"{name}.npz") or _download(name)
    x_train, y_train, x_test, y_test = _read(path, SOURCES[name])
    return Images(_pixels(x_train), _labels(y_train), _pixels(x_test), _labels(y_test))


def _read(path: Path, source: Source) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = [file[key] for key in _KEYS]
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FileFormatError(
            f"{path} is not a whole set of images ({error}). Delete it, and it is downloaded anew; or put an npz file "
            f"with the arrays {', '.join(_KEYS)} there."
        ) from error
    for key, array in zip(_KEYS, arrays, strict=True):
        shape = source.shape if key.startswith("x") else ()
        if array.dtype != np.uint8 or array.shape[1:] != shape or not len(array):
            raise FileFormatError(
                f"{path}: expected {key} as uint8 of shape (N, {', '.join(map(str, shape))}); got {array.dtype} of "
                f"shape {array.shape}. Delete the file, and it is downloaded anew."
            )
    return arrays


def _download(name: str) -> Path:
    """From OpenML into the cache: the training images come first there, then the test images."""
    source, target = SOURCES[name], cache_folder() / f"{name}.npz"
    try:
        pixels, classes = fetch_openml(source.openml, version=1, return_X_y=True, as_frame=False, parser="liac-arff")
    except Exception as error:  # of the network, of many kinds
        raise InputError(
            f"{name}: not in {target.parent}, and the download from OpenML failed ({error}). Put {name}.npz with the "
            f"uint8 arrays {', '.join(_KEYS)} there, or set {VARIABLE} to the folder that has it."
        ) from error
    images, labels = pixels.reshape(-1, *source.shape).astype(np.uint8), classes.astype(np.uint8)
    if len(images) != source.num_train + source.num_test:
        raise FileFormatError(
            f"{name}: OpenML sent {len(images)} images; expected {source.num_train + source.num_test}."
        )
    train, test = slice(0, source.num_train), slice(source.num_train, None)
    arrays = dict(zip(_KEYS, (images[train], labels[train], images[test], labels[test]), strict=True))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, lambda place: np.savez_compressed(place, **arrays))
    return target


def _pixels(images: np.ndarray) -> Float[Tensor, "N C H W"]:
    return torch.from_numpy(images).float().div_(255).unsqueeze(1)


def _labels(labels: np.ndarray) -> Int[Tensor, " N"]:
    return torch.from_numpy(labels.astype(np.int64))
