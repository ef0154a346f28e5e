"""The report: one HTML file with all pictures in it, and a table for the terminal."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from math import isfinite, sqrt
from statistics import fmean, stdev

from rich.table import Table as RichTable

from dnn2gp.apps.table_tuning.config import TableTuningConfig
from dnn2gp.apps.table_tuning.findings import data_words, setting_words
from dnn2gp.apps.table_tuning.problem import TableProblem
from dnn2gp.apps.table_tuning.tasks import Task
from dnn2gp.evidence.tuning_result import Setting, TuningResult
from dnn2gp.gp.diagnose import Diagnosis
from dnn2gp.tune.restarts import Fitted

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #eee; }
tr.best { font-weight: bold; background: #eef3fb; } img { max-width: 100%; } figure { margin: 1rem 0; }
figcaption { color: #555; font-size: .9rem; } pre { background: #f6f6f6; padding: .8rem; white-space: pre-wrap; }
.key { font-size: 1.1rem; background: #eef3fb; padding: .8rem 1rem; border-left: 4px solid #1d3d78; }
"""
_CAPTIONS = {
    "width": "Means over the repeats, with standard errors; the depth is that of the best setting.",
    "depth": "Means over the repeats, with standard errors; the width is that of the best setting.",
    "prior_precision": "The log evidence of all rows for other δ, at the features of the final network, which was "
    "trained with the δ in use.",
    "calibration": "Of the chosen setting, trained without the rows held out, on those rows.",
}


@dataclass(frozen=True, eq=False)
class Report:
    """All that is told."""

    config: TableTuningConfig
    problem: TableProblem
    tuning: TuningResult
    task: Task
    fitted: Fitted
    """The final network, trained on all rows."""
    held_out: str | None
    """How it does on the rows held out, in words; None if there are none."""
    diagnosis: Diagnosis
    notes: list[str]


@dataclass(frozen=True)
class _Line:
    """A setting with means and standard errors over its repeats."""

    settings: dict[str, Setting]
    best: bool
    cells: dict[str, tuple[float, float]]


def html(report: Report, images: Mapping[str, bytes]) -> str:
    """The report as one file; `images` are the PNG files of its pictures by name."""
    title = f"{report.problem.target} of {report.problem.table.name}"
    parts = [
        f"<h1>Tuned by the evidence: {escape(title)}</h1>",
        f'<p class="key">{escape(_choice(report))}</p>',
        *(f"<p>{escape(text)}</p>" for text in _story(report)),
        _notes(report.notes),
        f"<h2>Settings</h2>{_html_table(report)}",
        *(_figure(name, images) for name in ("width", "depth")),
        "<h2>Prior precision</h2>",
        _figure("prior_precision", images),
        "<h2>On the rows held out</h2>",
        f"<p>{escape(report.held_out or 'No row was held out (--test-share 0), so nothing can be said here.')}</p>",
        _figure("calibration", images),
        f"<h2>Can this GP be trusted?</h2><pre>{escape(str(report.diagnosis))}</pre>",
        f"<h2>To predict other rows</h2><pre>{escape(_usage(report))}</pre>",
        f"<p>dnn2gp {escape(version('dnn2gp'))}, seed {report.config.seed}.</p>",
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{chr(10).join(parts)}\n</body></html>\n'


def console_table(report: Report) -> RichTable:
    """The settings for the terminal, the best one marked."""
    table = RichTable(title=_choice(report), title_justify="left", caption=report.held_out, caption_justify="left")
    headings = {name: words for name, words in _headings(report).items() if name != "train_error"}
    for name in [*report.tuning.names, *headings.values(), ""]:
        table.add_column(name, justify="right", no_wrap=bool(name))
    for line in _lines(report, list(headings)):
        cells = [*(str(value) for value in line.settings.values()), *map(_with_error, line.cells.values())]
        table.add_row(*cells, "←" if line.best else "", style="bold" if line.best else None)
    return table


def _choice(report: Report) -> str:
    fitted = report.fitted
    sigma = "".join(f", σ = {value:.4g}" for value in report.task.noise(fitted.likelihood).values())
    return (
        f"Chosen: {setting_words(report.tuning.best)} ({report.config.activation}); trained on all rows: "
        f"δ = {fitted.prior_precision:.3g}{sigma}, log evidence {fitted.evidence:.1f}"
    )


def _story(report: Report) -> list[str]:
    config, problem = report.config, report.problem
    held = len(problem.held_out)
    test = f"{held:,} rows, drawn at random, were held out; they played no part in any choice." if held else ""
    kind = "The target was standardised too; errors are in its own units." if config.task == "regression" else ""
    tuned = "δ of the prior and the noise σ" if config.task == "regression" else "δ of the prior"
    often = "once" if config.repeats == 1 else f"{config.repeats} times"
    return [
        f"{data_words(problem)} Target: {problem.target} ({config.task}). Numbers were standardised, categories became "
        f"one input each. {kind} {test}",
        f"Every setting was trained {often} on {len(problem.training):,} rows. In each training {tuned} "
        f"were chosen by the log evidence (marginal likelihood) of these rows, in turns with the weights, from "
        f"{config.restarts} starts. The setting with the largest mean evidence was taken, and trained again on all "
        f"{len(problem.table):,} rows: that is the model that was saved.",
    ]


def _headings(report: Report) -> dict[str, str]:
    known = {
        "evidence": "log evidence",
        "train_error": f"train {report.task.short_label}",
        "test_error": f"test {report.task.short_label}",
        "test_log_likelihood": "test log likelihood",
    }
    return {name: words for name, words in known.items() if name in report.tuning.values}


def _lines(report: Report, values: list[str]) -> list[_Line]:
    tuning, lines = report.tuning, []
    seen = [dict(own) for own in dict.fromkeys(tuple(trial.settings.items()) for trial in tuning.trials)]
    for settings in sorted(seen, key=lambda own: [int(str(value)) for value in own.values()]):
        own = [trial for trial in tuning.trials if trial.settings == settings]
        cells = {name: _mean([trial.values[name] for trial in own]) for name in values}
        lines.append(_Line(settings, settings == tuning.best, cells))
    return lines


def _mean(values: list[float]) -> tuple[float, float]:
    """With its standard error; NaN for one value."""
    finite = all(isfinite(value) for value in values)
    return fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 and finite else float("nan")


def _with_error(cell: tuple[float, float]) -> str:
    mean, stderr = cell
    if not isfinite(mean):
        return "diverged"
    decimals = 1 if abs(mean) >= 1000 else 2 if abs(mean) >= 10 else 3
    return f"{mean:,.{decimals}f}" + (f" ± {stderr:,.{decimals}f}" if isfinite(stderr) else "")


def _html_table(report: Report) -> str:
    headings = _headings(report)
    head = "".join(f"<th>{escape(name)}</th>" for name in [*report.tuning.names, *headings.values()])
    rows = []
    for line in _lines(report, list(headings)):
        cells = [*(str(value) for value in line.settings.values()), *map(_with_error, line.cells.values())]
        mark = ' class="best"' if line.best else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    units = f"Mean ± standard error over the repeats. {report.task.short_label}: {report.task.error_label}."
    more = (
        " Log evidence in nats: of all training rows, a number standardised. Log likelihood in nats: of one row, in "
        "the units of the target. The chosen setting is bold."
    )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table><p>{escape(units + more)}</p>"


def _figure(name: str, images: Mapping[str, bytes]) -> str:
    if name not in images:
        return ""
    data, caption = b64encode(images[name]).decode(), escape(_CAPTIONS[name])
    image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _notes(notes: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>" if notes else ""


def _usage(report: Report) -> str:
    return (
        "import pandas as pd\n"
        "from dnn2gp.apps.table_tuning import load_table_model\n\n"
        f"model = load_table_model({str(report.config.out)!r})\n"
        'print(model.predict(pd.read_csv("rows.csv")))'
    )
