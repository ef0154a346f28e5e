"""The parts of a report: examples, interactive maps of them, claims, and sections with pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and what was measured."""

    what: str
    paper: str
    measured: str
    holds: bool | None
    """None if it cannot be judged."""


_PNG = b"\x89PNG\r\n\x1a\n"
_ROUNDING = 1e-4  # probabilities in float32 may slightly exceed 1


@dataclass(frozen=True, eq=False)
class Examples:
    """N images, each with its label, its prediction and the two parts of its variance."""

    # The arrays come from files, so their shapes are checked here, with messages for users.
    images: np.ndarray
    """uint8, N × H × W (grey) or N × H × W × 3."""
    labels: np.ndarray
    """N indices into `classes`."""
    classes: tuple[str, ...]
    predictions: np.ndarray
    """N indices into `classes`."""
    probabilities: np.ndarray
    """The N probabilities of the predicted classes."""
    epistemic: np.ndarray
    """N variances."""
    aleatoric: np.ndarray
    """N variances."""

    def __post_init__(self) -> None:
        _check_images(self.images)
        for name in ("labels", "predictions"):
            _check_labels(getattr(self, name), name, len(self.images), len(self.classes))
        for name in ("probabilities", "epistemic", "aleatoric"):
            _check_numbers(getattr(self, name), name, (len(self.images),))
        if (self.probabilities < -_ROUNDING).any() or (self.probabilities > 1 + _ROUNDING).any():
            low, high = self.probabilities.min(), self.probabilities.max()
            raise ValueError(
                f"probabilities: expected numbers between 0 and 1; got numbers from {low:.4g} to {high:.4g}."
            )

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class InteractiveMap:
    """An interactive matrix: the kernel between examples (N × N), or one value per example and output (N × K)."""

    title: str
    values: np.ndarray
    columns: tuple[str, ...] | None
    """The names of the K outputs; None if the columns are the examples themselves, as in a kernel."""
    examples: Examples
    scale: str
    """The label of the colour bar."""
    description: str

    def __post_init__(self) -> None:
        width = len(self.examples) if self.columns is None else len(self.columns)
        if width == 0:
            raise ValueError(f"{self.title}: columns: expected at least one name; got none.")
        _check_numbers(self.values, f"{self.title}: values", (len(self.examples), width))

    @property
    def is_kernel(self) -> bool:
        """Whether the columns are the examples themselves."""
        return self.columns is None


@dataclass(frozen=True, eq=False)
class Section:
    """One experiment in the report."""

    name: str
    """Short and unique; the anchor of the section is made from it."""
    title: str
    caption: str
    pictures: dict[str, bytes]
    """Caption → PNG."""
    config: dict[str, Any]
    seconds: float
    claims: tuple[Claim, ...]
    maps: tuple[InteractiveMap, ...] = ()
    files: tuple[str, ...] = ()
    """Paths relative to the report."""
    resumed: bool = False
    """Whether `seconds` counts only the time since a resumed run."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name: expected a short name for the section; got an empty one.")
        for caption, content in self.pictures.items():
            if not content.startswith(_PNG):
                raise ValueError(f"pictures: expected the bytes of a PNG; got something else for {caption!r}.")
        if not np.isfinite(self.seconds) or self.seconds < 0:
            raise ValueError(f"seconds: expected a time of 0 or more; got {self.seconds}.")


def _check_images(images: np.ndarray) -> None:
    shaped = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] == 3)
    if images.dtype != np.uint8 or not shaped or 0 in images.shape:
        raise ValueError(
            "images: expected uint8 of shape N × H × W (grey) or N × H × W × 3 (colour), with N, H and W of 1 or more; "
            f"got {images.dtype} of shape {images.shape}."
        )


def _check_labels(labels: np.ndarray, name: str, count: int, num_classes: int) -> None:
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"{name}: expected {count} integers, one for each image; got {labels.dtype} of shape {labels.shape}."
        )
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"{name}: expected class indices from 0 to {num_classes - 1}; got numbers from {labels.min()} to "
            f"{labels.max()}."
        )


def _check_numbers(values: np.ndarray, name: str, shape: tuple[int, ...]) -> None:
    if values.shape != shape or not np.issubdtype(values.dtype, np.floating):
        raise ValueError(f"{name}: expected floats of shape {shape}; got {values.dtype} of shape {values.shape}.")
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: expected finite numbers; got NaN or infinity.")
    if np.abs(values).max() > np.finfo(np.float32).max:
        raise ValueError(f"{name}: expected numbers within the range of float32; got {np.abs(values).max():.3g}.")
