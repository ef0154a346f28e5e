"""The result of a figure: the arrays of its pictures, and what was measured compared with what the paper says."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field, is_dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from dnn2gp.plots.report.claim import Claim
from dnn2gp.support.errors import FileFormatError
from dnn2gp.support.files import write_text, write_whole

_FORMAT = 2


@dataclass(frozen=True, eq=False)
class FigureResult:
    """Everything that a figure is drawn from. The arrays depend on the configuration and its seed alone."""

    figure: str
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]
    claims: tuple[Claim, ...]
    seconds: float
    """Duration of the run; after an interrupt, of the resumed part only."""
    resumed: bool = False
    """Whether the run continued an earlier one."""
    versions: dict[str, str] = field(default_factory=lambda: _versions())
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    """Its small networks, each as one vector; not part of the files, as nothing is drawn from them."""

    def save(self, folder: Path) -> None:
        """Write FIGURE.npz and FIGURE.json, each atomically; the second holds the checksum of the first."""
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / f"{self.figure}.npz"
        write_whole(place, lambda path: np.savez(path, allow_pickle=False, **self.arrays))
        self.save_json(folder)

    def save_json(self, folder: Path) -> None:
        """Write FIGURE.json alone, for the arrays that the folder already holds."""
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
                raise ValueError("the npz file is not the one that the JSON file describes")
            with np.load(folder / f"{figure}.npz", allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            claims = tuple(Claim(**each) for each in known["claims"])
            seconds, resumed = float(known["seconds"]), bool(known["resumed"])
            return FigureResult(figure, known["config"], arrays, claims, seconds, resumed, known["versions"])
        except (ValueError, KeyError, TypeError, OSError, BadZipFile) as error:
            raise FileFormatError(
                f"{folder} holds no complete result of {figure} ({error}). Run the figure again."
            ) from error


def plain(config: object) -> dict[str, Any]:
    """A frozen configuration as JSON values."""
    assert is_dataclass(config)
    assert not isinstance(config, type)
    return json.loads(json.dumps(asdict(config), default=str))


def written(value: float, form: str = ".4g") -> str:
    """A number for readers: thousands without an exponent, and a true minus sign."""
    large = form.endswith("g") and 1e3 <= abs(value) < 1e7
    return (f"{value:,.0f}" if large else format(value, form)).replace("-", "−")


def _versions() -> dict[str, str]:
    known = {name: version(name) for name in ("dnn2gp", "torch", "numpy")}
    return {"python": platform.python_version(), **known, "threads": str(torch.get_num_threads())}
