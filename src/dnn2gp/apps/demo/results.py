"""The results of the demo, and the tables that it prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dnn2gp.apps.demo.config import DemoConfig
from dnn2gp.evidence.terms import Evidence
from dnn2gp.gp.diagnose import Diagnosis
from dnn2gp.gp.gaussian_process import GaussianProcess


@dataclass(frozen=True)
class Scores:
    """The quality of one way of predicting the test digits."""

    accuracy: float
    nll: float
    ece: float


@dataclass(frozen=True)
class Foreign:
    """How one set of images looks to the network and to the GP."""

    confident: float
    """The share whose most probable class has more than 90 % according to the network."""
    unfamiliar: float
    """The share whose outlier score exceeds that of 95 % of the training digits."""
    network_auroc: float
    """The AUROC with which the entropy of the network tells the set from the test digits; ½ is chance."""
    gp_auroc: float
    """The same for the outlier score of the GP."""


@dataclass(frozen=True)
class DemoResult:
    """All numbers that the demo prints, and the files that it writes."""

    gp: GaussianProcess
    scores: dict[str, Scores]
    foreign: dict[str, Foreign]
    evidence: Evidence
    diagnosis: Diagnosis
    seconds: dict[str, float]
    files: tuple[Path, ...]


def report(result: DemoResult, config: DemoConfig) -> Group:
    """The results as tables for the terminal."""
    sizes = f"{config.num_train} training digits of 8 × 8 pixels, {result.gp.network.num_weights} weights, Adam"
    return Group(
        Panel(Text(sizes), title="A neural network as a Gaussian process", expand=False),
        _scores_table(result.scores),
        _foreign_table(result.foreign),
        Panel(Text(str(result.diagnosis)), title="Diagnosis", expand=False),
        _seconds_table(result.seconds),
        Text(f"{result.evidence} (nats)"),
        Text("Saved:\n" + "\n".join(f"  {path}" for path in result.files), no_wrap=True, overflow="ignore"),
    )


def _scores_table(scores: dict[str, Scores]) -> Table:
    table = Table(title="Digits it knows: probabilities of the test digits")
    for column in ("", "accuracy", "NLL", "ECE"):
        table.add_column(column, justify="right" if column else "left")
    for name, score in scores.items():
        table.add_row(name, f"{score.accuracy:.1%}", f"{score.nll:.3f}", f"{score.ece:.3f}")
    return table


def _foreign_table(foreign: dict[str, Foreign]) -> Table:
    caption = (
        "Unfamiliar: a larger outlier score than 95 % of the training digits, each predicted from all the others. "
        "Told apart: AUROC against the test digits, by the network's entropy and by the GP's outlier score."
    )
    table = Table(title="Images it does not know", caption=caption)
    columns = ("", "network above 90 %", "unfamiliar to the GP", "told apart by the network", "by the GP")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for name, own in foreign.items():
        known = name == "digits"
        areas = ("", "") if known else (f"{own.network_auroc:.3f}", f"{own.gp_auroc:.3f}")
        table.add_row(name, f"{own.confident:.1%}", f"{own.unfamiliar:.1%}", *areas)
    return table


def _seconds_table(seconds: dict[str, float]) -> Table:
    table = Table(title="Time", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for part, spent in seconds.items():
        table.add_row(part, f"{spent:.1f} s")
    table.add_section()
    table.add_row("total", f"{sum(seconds.values()):.1f} s", style="bold")
    return table
