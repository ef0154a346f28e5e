"""The report of a tuning run: one HTML file with all pictures, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from math import isfinite

import torch
from matplotlib.figure import Figure
from rich.table import Table as RichTable

from dnn2gp import plots
from dnn2gp.apps.table_tuning.config import TableTuningConfig
from dnn2gp.apps.table_tuning.findings import data_words, setting_words, taken_for
from dnn2gp.apps.table_tuning.problem import TableProblem
from dnn2gp.apps.table_tuning.tasks import Task
from dnn2gp.evidence.tuning_result import TuningResult, mean_and_error
from dnn2gp.gp.diagnose import Diagnosis
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.plots.report.template import render
from dnn2gp.plots.style import DPI
from dnn2gp.tune.restarts import Fitted

_LABELS = {"width": "width (hidden units per layer)", "depth": "depth (hidden layers)"}
# The curve of δ extends this many decades to either side of the choice.
_DECADES, _POINTS = 1.5, 61


def setting_curves(tuning: TuningResult, task: Task) -> dict[str, Figure]:
    """Errors and evidence along each setting that was varied, with the others as in the best setting."""
    found = {}
    for name in tuning.names:
        curve = tuning.curve(name)
        if len(curve.settings) < 2:
            continue
        errors = {}
        for part in ("train", "test"):
            if f"{part}_error" in tuning.values:
                own = tuning.curve(name, f"{part}_error")
                if any(map(isfinite, own.mean)):
                    errors[part] = (own.mean, own.stderr)
        found[name] = plots.tuning_curves(
            [float(str(setting)) for setting in curve.settings],
            (curve.mean, curve.stderr),
            errors,
            xlabel=_LABELS[name],
            log_x=name == "width",
            title=f"{name.capitalize()} of the network",
            error_label=task.error_label,
        )
    return found


def precision_curve(gp: GaussianProcess, prior_precision: float) -> Figure:
    """The log evidence as a function of δ, with the features of the final network."""
    factors = torch.logspace(-_DECADES, _DECADES, _POINTS, dtype=torch.float64)
    values = gp.evidence_function()(factors, torch.ones_like(factors))
    return plots.tuning_curves(
        (prior_precision * factors).tolist(),
        (values.detach().numpy(), torch.zeros_like(factors).numpy()),
        xlabel="prior precision δ",
        log_x=True,
        chosen=prior_precision,
        title="Prior precision of the final network",
    )


_CAPTIONS = {
    "width": "Mean and standard error over the repeats, at the depth of the chosen setting.",
    "depth": "Mean and standard error over the repeats, at the width of the chosen setting.",
    "prior_precision": "The log evidence of all rows as a function of δ, with the features of the final network, which "
    "was trained with the marked δ.",
    "calibration": "The chosen setting, trained on the training rows and evaluated on the test rows.",
}


@dataclass(frozen=True, eq=False)
class Report:
    """Everything that is reported."""

    config: TableTuningConfig
    problem: TableProblem
    tuning: TuningResult
    task: Task
    fitted: Fitted
    """The final network, trained on all rows."""
    held_out: str | None
    """The result on the test rows, in words; None if there are no test rows."""
    diagnosis: Diagnosis
    notes: list[str]


@dataclass(frozen=True)
class Row:
    """A setting with the means and standard errors of its values over the repeats, as text."""

    best: bool
    cells: tuple[str, ...]


def html(report: Report, images: Mapping[str, bytes]) -> str:
    """The report as the text of one HTML file; `images` maps the name of each picture to its PNG."""
    headings = _headings(report)
    return render(
        "tuning.html.j2",
        "dnn2gp.apps.table_tuning",
        title=f"Tuned by the evidence: {report.problem.target} in {report.problem.table.name}",
        choice=_choice(report),
        story=_story(report),
        notes=report.notes,
        columns=taken_for(report.problem),
        headings=[*report.tuning.names, *headings.values()],
        rows=_rows(report, list(headings)),
        units=_units(report),
        held_out=report.held_out,
        diagnosis=str(report.diagnosis),
        images=images,
        captions=_CAPTIONS,
        dpi=DPI,
        folder=repr(str(report.config.out)),
        version=version("dnn2gp"),
        seed=report.config.seed,
    )


def console_table(report: Report) -> RichTable:
    """The settings for the terminal, with the chosen one marked."""
    table = RichTable(title=_choice(report), title_justify="left", caption=report.held_out, caption_justify="left")
    headings = {name: words for name, words in _headings(report).items() if name != "train_error"}
    for name in [*report.tuning.names, *headings.values(), ""]:
        table.add_column(name, justify="right", no_wrap=bool(name))
    for row in _rows(report, list(headings)):
        table.add_row(*row.cells, "←" if row.best else "", style="bold" if row.best else None)
    return table


def _choice(report: Report) -> str:
    fitted = report.fitted
    sigma = "".join(f", σ = {value:.4g}" for value in report.task.noise(fitted.likelihood).values())
    return (
        f"Chosen: {setting_words(report.tuning.best)} ({report.config.activation}). Trained on all rows: "
        f"δ = {fitted.prior_precision:.3g}{sigma}, log evidence {fitted.evidence:.1f}"
    )


def _story(report: Report) -> list[str]:
    config, problem = report.config, report.problem
    held = len(problem.held_out)
    regression = config.task == "regression"
    scaled = " The target was standardised too; errors are in its original units." if regression else ""
    test = f" {held:,} randomly chosen rows were held out as test rows and not used for any choice." if held else ""
    tuned = "the prior precision δ and the noise σ" if regression else "the prior precision δ"
    often = "once" if config.repeats == 1 else f"{config.repeats} times"
    starts = "one start" if config.restarts == 1 else f"{config.restarts} starts"
    return [
        f"{data_words(problem)} Target: {problem.target} ({config.task}). Numeric columns (and dates, as "
        f"days) were standardised and categorical columns one-hot encoded.{scaled}{test}",
        f"Every setting was trained {often} on {len(problem.training):,} rows, from {starts} each time. Every "
        f"training run alternated between updating the weights and choosing {tuned} by the log evidence (log "
        "marginal likelihood) of the training rows. The setting with the largest mean evidence was then trained on "
        f"all {len(problem.table):,} rows. That is the saved model.",
    ]


def _units(report: Report) -> str:
    return (
        f"Mean ± standard error over the repeats. {report.task.short_label}: {report.task.error_label}. Log "
        "evidence: of all training rows, in nats, with numeric targets standardised. Test log likelihood: per row, "
        "in nats, in the units of the target. The chosen setting is in bold."
    )


def _headings(report: Report) -> dict[str, str]:
    known = {
        "evidence": "log evidence",
        "train_error": f"train {report.task.short_label}",
        "test_error": f"test {report.task.short_label}",
        "test_log_likelihood": "test log likelihood",
    }
    return {name: words for name, words in known.items() if name in report.tuning.values}


def _rows(report: Report, values: list[str]) -> list[Row]:
    tuning, rows = report.tuning, []
    seen = [dict(own) for own in dict.fromkeys(tuple(trial.settings.items()) for trial in tuning.trials)]
    for settings in sorted(seen, key=lambda own: [int(str(value)) for value in own.values()]):
        trials = [trial for trial in tuning.trials if trial.settings == settings]
        cells = (_mean_with_error([trial.values[name] for trial in trials]) for name in values)
        rows.append(Row(settings == tuning.best, (*map(str, settings.values()), *cells)))
    return rows


def _mean_with_error(values: list[float]) -> str:
    mean, stderr = mean_and_error(values)
    if not isfinite(mean):
        return "diverged"
    decimals = 1 if abs(mean) >= 1000 else 2 if abs(mean) >= 10 else 3
    error = f" ± {stderr:,.{decimals}f}" if len(values) > 1 else ""
    return f"{mean:,.{decimals}f}{error}"
