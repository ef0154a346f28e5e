"""A figure as one value (name, computation, claims, drawing), and its result: arrays, and measurements compared with
the paper.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, is_dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar
from zipfile import BadZipFile

import numpy as np
import torch
from matplotlib.figure import Figure

from dnn2gp.plots.report import InteractiveMap
from dnn2gp.plots.report.section import Claim
from dnn2gp.support.errors import FileFormatError, InputError
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
                f"{folder} does not hold a complete result of {figure} ({error}). Run the figure again."
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


PRESETS = ("paper", "smoke")
Arrays: TypeAlias = "dict[str, np.ndarray]"
Drawings: TypeAlias = "dict[str, Figure]"
Config = TypeVar("Config")


@dataclass(frozen=True)
class Workspace:
    """The folders that a run may resume from; None keeps nothing on disk."""

    work: Path | None = None
    """For the unfinished parts of this figure."""
    weights: Path | None = None
    """For trained networks, which figures may share."""
    resume: bool = False
    """Whether to continue with what `work` holds."""

    def work_on(self, part: str) -> Path | None:
        """The folder of one part of the figure."""
        return None if self.work is None else self.work / part


@dataclass(frozen=True, eq=False)
class Findings:
    """What was computed for a figure."""

    arrays: Arrays
    """Everything that the claims and the pictures need."""
    weights: Arrays = field(default_factory=dict)
    """The weights of its small networks, each as one vector."""


@dataclass(frozen=True, eq=False)
class FigureKind(Generic[Config]):
    """One figure of the paper, or beyond it. Each module in `paper/figures/` has one, under the name FIGURE.

    name     its name on the command line, which its files have too
    order    figures are listed and run in ascending order
    title    the heading of its section in the report
    caption  what the pictures show
    paper    the configuration with the paper's sizes; smoke: a small one, to check that everything works
    compute  runs the experiment
    claims   compares the arrays with what the paper says
    draw     name suffix → picture
    maps     the interactive maps of the report
    network  the name under which its trained networks are stored, if it trains any
    """

    name: str
    order: int
    title: str
    caption: str
    paper: Config
    smoke: Config
    compute: Callable[[Config, Workspace], Findings]
    claims: Callable[[Arrays, Config], tuple[Claim, ...]]
    draw: Callable[[FigureResult], Drawings]
    maps: Callable[[FigureResult], tuple[InteractiveMap, ...]] = lambda result: ()
    network: str = ""

    def preset(self, name: str) -> Config:
        """The configuration called `paper` or `smoke`."""
        if name not in PRESETS:
            raise InputError(f"preset: expected {' or '.join(PRESETS)}; got {name!r}.")
        return self.smoke if name == "smoke" else self.paper

    def run(self, config: Config | None = None, workspace: Workspace | None = None) -> FigureResult:
        """Compute the figure and judge its claims; by default with the paper's sizes, and nothing kept on disk."""
        own = self.paper if config is None else config
        begin = time.perf_counter()
        found = self.compute(own, workspace or Workspace())
        claims, seconds = self.claims(found.arrays, own), time.perf_counter() - begin
        return FigureResult(self.name, plain(own), found.arrays, claims, seconds, weights=found.weights)
