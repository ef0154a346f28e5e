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
from dnn2gp.inference import Cost


@dataclass(frozen=True)
class Scores:
    """The quality of one way of predicting, and its confidence on the test digits and on rotated ones."""

    accuracy: float
    nll: float
    ece: float
    confidence: float
    """The mean probability of the predicted class."""
    confidence_rotated: float
    """The same on the test digits rotated by 90°, which look unlike all training digits."""


@dataclass(frozen=True)
class DemoResult:
    """All numbers that the demo prints, and the files that it writes."""

    num_weights: int
    scores: dict[str, Scores]
    evidence: Evidence
    diagnosis: Diagnosis
    space: str
    costs: tuple[Cost, ...]
    seconds: dict[str, float]
    files: tuple[Path, ...]


def report(result: DemoResult, config: DemoConfig) -> Group:
    """The results as tables for the terminal."""
    sizes = f"{config.num_train} training digits, {result.num_weights} weights"
    heading = Text(f"{sizes}, prior precision δ = {config.prior_precision:g}")
    return Group(
        Panel(heading, title="A neural network as a Gaussian process", expand=False),
        _scores_table(result.scores),
        _evidence_table(result.evidence),
        Panel(Text(str(result.diagnosis)), title="Diagnosis", expand=False),
        _costs_table(result),
        _seconds_table(result.seconds),
        Text("Saved:\n" + "\n".join(f"  {path}" for path in result.files), no_wrap=True, overflow="ignore"),
    )


def _scores_table(scores: dict[str, Scores]) -> Table:
    caption = (
        "Confidence is the mean probability of the predicted class; the rotated digits are turned by 90°. Averaging "
        "over the posterior (probit, Monte Carlo) lowers the confidence. On ordinary digits it lowers it too much; "
        "on rotated ones, where the network alone stays confident, the lower confidence is justified."
    )
    table = Table(title="Predictions on the test digits", caption=caption)
    for column in ("", "accuracy", "NLL", "ECE", "confidence", "confidence, rotated"):
        table.add_column(column, justify="right" if column else "left")
    for name, score in scores.items():
        shares = (score.confidence, score.confidence_rotated)
        table.add_row(
            name, f"{score.accuracy:.1%}", f"{score.nll:.3f}", f"{score.ece:.3f}", *(f"{share:.1%}" for share in shares)
        )
    return table


def _evidence_table(evidence: Evidence) -> Table:
    table = Table(title="Log evidence of the training data (nats)", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("fit: log p(D | w)", f"{evidence.log_likelihood:.1f}")
    table.add_row("weights: −½ δ wᵀw", f"{-evidence.prior_penalty:.1f}")
    table.add_row("complexity: −½ log |I + SᵀKS|", f"{-evidence.complexity:.1f}", end_section=True)
    table.add_row("log evidence (Laplace)", f"{evidence.value:.1f}", style="bold")
    return table


def _costs_table(result: DemoResult) -> Table:
    table = Table(title="Exact inference in the cheaper of the two spaces", show_header=False)
    for cost in result.costs:
        used = cost.space == result.space
        table.add_row("used" if used else "", str(cost), style="bold" if used else "dim")
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
