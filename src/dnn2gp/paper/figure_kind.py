"""A figure as one value: what it is called, how it is computed, what it claims, and how it is drawn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from matplotlib.figure import Figure

from dnn2gp.paper.figure_result import FigureResult, plain
from dnn2gp.plots.report import InteractiveMap
from dnn2gp.plots.report.claim import Claim
from dnn2gp.support.errors import InputError

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
    paper    the configuration with the paper's sizes; smoke: a small one, to see that everything works
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
