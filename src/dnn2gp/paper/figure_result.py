"""What an experiment found: arrays for its pictures, and what the paper says beside what was measured."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from dnn2gp.plots.report.claim import Claim
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.files import write_text, write_whole

PRESETS = ("paper", "smoke")
_FORMAT = 2


@dataclass(frozen=True, eq=False)
class FigureResult:
    """All that a figure is drawn from. The arrays depend on configuration and seed alone; the time does not."""

    figure: str
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]
    claims: tuple[Claim, ...]
    seconds: float
    """Of the run; after an interrupt only since it was resumed."""
    resumed: bool = False
    """Whether a part of it was there already."""
    versions: dict[str, str] = field(default_factory=lambda: _versions())
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    """Of its small networks, each as one vector; `save` leaves them out, as nothing is drawn from them."""

    def save(self, folder: Path) -> None:
        """FIGURE.npz and FIGURE.json, each whole or not at all; the second knows the checksum of the first."""
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / f"{self.figure}.npz"
        write_whole(place, lambda path: np.savez(path, allow_pickle=False, **self.arrays))
        self.save_words(folder)

    def save_words(self, folder: Path) -> None:
        """FIGURE.json alone, beside the arrays that are there."""
        arrays = folder / f"{self.figure}.npz"
        known = {
            "format": _FORMAT,
            "sha256": sha256(arrays.read_bytes()).hexdigest(),
            "figure": self.figure,
            "config": self.config,
            "claims": [asdict(claim) for claim in self.claims],
            "seconds": self.seconds,
            "resumed": self.resumed,
            "versions": self.versions,
        }
        write_text(folder / f"{self.figure}.json", json.dumps(known, indent=1, ensure_ascii=False))

    @staticmethod
    def load(folder: Path, figure: str) -> FigureResult:
        """The inverse of `save`."""
        try:
            known = json.loads((folder / f"{figure}.json").read_text(encoding="utf-8"))
            if known["format"] != _FORMAT:
                raise ValueError(f"format {known['format']}, expected {_FORMAT}")
            if known["sha256"] != sha256((folder / f"{figure}.npz").read_bytes()).hexdigest():
                raise ValueError("the npz file is not the one that the JSON file speaks of")
            with np.load(folder / f"{figure}.npz", allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            claims = tuple(Claim(**each) for each in known["claims"])
            seconds, resumed = float(known["seconds"]), bool(known["resumed"])
            return FigureResult(figure, known["config"], arrays, claims, seconds, resumed, known["versions"])
        except (ValueError, KeyError, TypeError, OSError, BadZipFile) as error:
            raise FileFormatError(
                f"{folder} holds no whole result of {figure} ({error}). Run the experiment again."
            ) from error


def check_preset(name: str) -> str:
    """The name, if it is one of the two."""
    if name not in PRESETS:
        raise InputError(f"preset: expected {' or '.join(PRESETS)}; got {name!r}.")
    return name


def plain(config: object) -> dict[str, Any]:
    """A frozen configuration, as JSON takes it."""
    assert is_dataclass(config)
    assert not isinstance(config, type)
    return json.loads(json.dumps(_known(asdict(config)), default=str))


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def written(value: float, form: str = ".4g") -> str:
    """A number as a reader likes it: thousands without an exponent, and a true minus sign."""
    large = form.endswith("g") and 1e3 <= abs(value) < 1e7
    return (f"{value:,.0f}" if large else format(value, form)).replace("-", "−")


def _versions() -> dict[str, str]:
    known = {name: version(name) for name in ("dnn2gp", "torch", "numpy")}
    return {"python": platform.python_version(), **known, "threads": str(torch.get_num_threads())}
