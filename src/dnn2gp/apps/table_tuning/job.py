"""The job: read, tune by the evidence, refit on all rows, evaluate, predict and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import joblib
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from dnn2gp.apps.table_tuning import findings, report
from dnn2gp.apps.table_tuning.config import TableTuningConfig
from dnn2gp.apps.table_tuning.model import TableModel, write_predictions
from dnn2gp.apps.table_tuning.problem import TableProblem, TableRows, widths_of
from dnn2gp.apps.table_tuning.report import Report, console_table, html
from dnn2gp.apps.table_tuning.tasks import Calibration, Task, task_of
from dnn2gp.apps.table_tuning.training import Architecture, TableEffort, TableFit, converted
from dnn2gp.apps.tables import Table, read_table
from dnn2gp.evidence.tuning_result import Trial, TuningResult
from dnn2gp.gp.diagnose import diagnose
from dnn2gp.support.files import prepare_folder, write_text, write_whole
from dnn2gp.support.folders import claimed
from dnn2gp.support.progress import bar, show_progress
from dnn2gp.tune import grid
from dnn2gp.tune.one_thread import one_thread
from dnn2gp.tune.processes import ProcessId, end_with
from dnn2gp.tune.restarts import Fitted


@dataclass(frozen=True, eq=False)
class TableTuningResult:
    """The result of `dnn2gp tune`."""

    tuning: TuningResult
    """All trials, and the setting with the largest mean evidence."""
    model: TableModel
    """The network with that setting, trained on all rows, as a GP."""
    notes: tuple[str, ...]
    """What a user should know before trusting it."""
    files: tuple[Path, ...]


def run(config: TableTuningConfig, console: Console | None = None) -> TableTuningResult:
    """Tune, refit, predict, write all files, and print the result."""
    config.check()
    console = console or Console()
    problem = TableProblem.of(config)
    everything = problem.encoder()
    asked = None if config.predict is None else read_table(config.predict)
    if asked is not None:
        everything.inputs(asked)  # so that errors in it show before the tuning
    widths, left_out = widths_of(config, everything.num_inputs, everything.target.num_outputs)
    prepare_folder(config.out)
    console.print(Text(_opening(config, problem)))
    console.print(Text(findings.taken_for_words(problem)))
    fit = _fit(config, problem)
    with claimed(config.out), show_progress():
        tuning = _tune(config, problem, fit, widths, console)
        tuning.save(config.out / "tuning.json")
        fitted, model, calibration = _refit(config, problem, fit, tuning)
        found = Report(
            config=config,
            problem=problem,
            tuning=tuning,
            task=model.task,
            fitted=fitted,
            held_out=None if calibration is None else findings.held_out(tuning, fit, calibration.words),
            diagnosis=diagnose(model.gp),
            notes=findings.notes(config, problem, tuning, fitted, model.task, left_out),
        )
        drawn = _pictures(found, model, calibration)
        files = _write(config, found, model, drawn, asked)
    console.print(console_table(found))
    for note in found.notes:
        console.print(Text(f"• {note}"))
    console.print(Text("Written:\n" + "\n".join(f"  {path}" for path in files)), soft_wrap=True)
    return TableTuningResult(tuning, model, tuple(found.notes), files)


def _opening(config: TableTuningConfig, problem: TableProblem) -> str:
    known = "" if config.data is not None else "No DATA given: using an example data set. "
    held = f"Test rows: {len(problem.held_out):,}." if len(problem.held_out) else "No test rows."
    return f"{known}{findings.data_words(problem)} Target: {problem.target!r} ({config.task}). {held}"


def _fit(config: TableTuningConfig, problem: TableProblem) -> TableFit:
    encoder = problem.encoder(problem.training)
    return TableFit(
        task=task_of(encoder.target),
        training=problem.rows(encoder, problem.training),
        held_out=problem.rows(encoder, problem.held_out),
        activation=config.activation,
        effort=TableEffort(config.restarts, config.max_rounds, config.seed),
    )


def _tune(
    config: TableTuningConfig, problem: TableProblem, fit: TableFit, widths: Sequence[int], console: Console
) -> TuningResult:
    """Train every width and depth with every repeat; each finished job is written at once."""
    purpose = {
        "data": problem.digest(),
        "task": config.task,
        "activation": config.activation,
        "restarts": config.restarts,
        "max_rounds": config.max_rounds,
        "seed": config.seed,
    }
    jobs = len(widths) * len(config.depths) * config.repeats
    try:
        return grid(
            fit,
            {"width": sorted(widths, reverse=True), "depth": sorted(config.depths, reverse=True)},  # the longest first
            repeats=config.repeats,
            folder=config.out,
            resume=config.resume,
            num_jobs=min(jobs, config.jobs or joblib.cpu_count()),
            purpose=purpose,
        )
    except KeyboardInterrupt:
        console.print(
            f"Stopped. The finished jobs are in {config.out / 'jobs'}. Continue with --resume.", soft_wrap=True
        )
        raise


def _best_repeat(tuning: TuningResult) -> int:
    """The repeat of the best setting that has the largest evidence."""
    own = [trial for trial in tuning.trials if trial.settings == tuning.best]

    def evidence(trial: Trial) -> float:
        return trial.evidence if isfinite(trial.evidence) else -float("inf")

    return max(own, key=evidence).repeat


def _refit(
    config: TableTuningConfig, problem: TableProblem, fit: TableFit, tuning: TuningResult
) -> tuple[Fitted, TableModel, Calibration | None]:
    """Train the chosen setting on all rows, with δ and σ tuned anew, and again on the training rows for calibration."""
    encoder, architecture, repeat = problem.encoder(), fit.architecture(**_sizes(tuning)), _best_repeat(tuning)
    rows = problem.rows(encoder)
    work = [(rows, task_of(encoder.target)), (fit.training, fit.task)][: 2 if len(fit.held_out) else 1]
    with bar("training the chosen network on all rows", len(work)):
        fitted: Any = joblib.Parallel(n_jobs=min(len(work), config.jobs or joblib.cpu_count()))(
            joblib.delayed(_train)(ProcessId.own(), fit.effort, architecture, *each, repeat) for each in work
        )
    model = TableModel(converted(fitted[0], rows), encoder, architecture)
    if len(work) == 1:
        return fitted[0], model, None
    prediction = converted(fitted[1], fit.training).predict(fit.held_out.inputs)
    return fitted[0], model, fit.task.calibration(prediction, fit.held_out.targets)


def _train(
    owner: ProcessId, effort: TableEffort, architecture: Architecture, rows: TableRows, task: Task, repeat: int
) -> Fitted:
    """Train with one thread, as the jobs do, so that the same job gives the same network."""
    end_with(owner)
    with one_thread():
        return effort.train(architecture, rows, task, repeat)


def _sizes(tuning: TuningResult) -> dict[str, int]:
    return {name: int(str(value)) for name, value in tuning.best.items()}


def _pictures(found: Report, model: TableModel, calibration: Calibration | None) -> dict[str, Figure]:
    drawn = report.setting_curves(found.tuning, found.task)
    drawn["prior_precision"] = report.precision_curve(model.gp, found.fitted.prior_precision)
    return drawn if calibration is None else {**drawn, "calibration": calibration.picture}


def _write(
    config: TableTuningConfig, found: Report, model: TableModel, drawn: dict[str, Figure], asked: Table | None
) -> tuple[Path, ...]:
    """Write all files but tuning.json, each completely or not at all; the report is the first in the list."""
    files = [config.out / "report.html", config.out / "tuning.json", *model.save(config.out)]
    for name, figure in drawn.items():
        files.append(config.out / f"{name}.png")
        write_whole(files[-1], partial(figure.savefig))
    if asked is not None:
        files.append(config.out / "predictions.csv")
        write_predictions(asked, model.predict_table(asked), files[-1])
    images = {name: (config.out / f"{name}.png").read_bytes() for name in drawn}
    write_text(files[0], html(found, images))
    return tuple(files)
