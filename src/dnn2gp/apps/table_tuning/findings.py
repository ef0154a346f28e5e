"""What is to be said about a tuning, in words: for the terminal and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean

from dnn2gp.apps.table_tuning.config import TableTuningConfig
from dnn2gp.apps.table_tuning.problem import TableProblem
from dnn2gp.apps.table_tuning.tasks import Regression, Task
from dnn2gp.apps.table_tuning.training import TableFit
from dnn2gp.apps.tables import Category, Column, Flag, Number
from dnn2gp.evidence.tuning_result import Setting, TuningResult
from dnn2gp.tune.restarts import Fitted

# Settings whose mean log evidences differ by less are equally good: a factor e² in probability.
_ALIKE = 2.0
# A noise of this share of the target's spread leaves next to nothing explained.
_UNEXPLAINED = 0.95
_FEW_VALUES = 10


def setting_words(settings: Mapping[str, Setting]) -> str:
    """width 20, depth 1."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def data_words(problem: TableProblem) -> str:
    """Rows and columns, and what was left out or filled."""
    counts = {kind: sum(own is kind for own in problem.kinds.values()) for kind in (Number, Flag, Category)}
    words: dict[type[Column], str] = {Number: "of numbers", Flag: "of true and false", Category: "of categories"}
    columns = ", ".join(f"{counts[kind]} {words[kind]}" for kind in counts if counts[kind])
    left_out = [name for name in problem.table.names if name != problem.target and name not in problem.kinds]
    parts = [f"{problem.table.name}: {len(problem.table):,} rows, {len(problem.kinds)} columns ({columns})"]
    if left_out:
        parts.append(f"left out: {', '.join(left_out)}")
    if problem.impute:
        parts.append("missing cells filled")
    return "; ".join(parts) + "."


def held_out(tuning: TuningResult, fit: TableFit, calibration: str) -> str:
    """The chosen setting on the rows held out, beside the best setting there and beside knowing nothing."""
    name, label = "test_error", fit.task.short_label
    means = {words: fmean(values) for words, values in _grouped(tuning, name).items()}
    chosen = setting_words(tuning.best)
    finite = {words: mean for words, mean in means.items() if isfinite(mean)}
    best = min(finite, key=lambda words: finite[words])
    beside = "no setting does better" if best == chosen else f"the best there, {best}, has {finite[best]:.4g}"
    known = fit.task.ignorance(fit.training.targets, fit.held_out.targets)
    return f"Held out: {label} {means[chosen]:.4g} ({beside}; {fit.task.without} {known:.4g}). {calibration}"


def notes(
    config: TableTuningConfig,
    problem: TableProblem,
    tuning: TuningResult,
    fitted: Fitted,
    task: Task,
    widths_left_out: Sequence[int],
) -> list[str]:
    """Everything that a user should know before trusting the choice."""
    found = []
    if widths_left_out:
        left = ", ".join(map(str, widths_left_out))
        found.append(f"The usual widths {left} were left out: they make many weights. Ask for them with --width.")
    if config.max_rows is not None:
        found.append(f"Only the first {len(problem.table)} rows were used (preset smoke).")
    if isinstance(task, Regression):
        found += _about_numbers(problem, task, fitted)
    alike = _alike(tuning)
    if alike:
        found.append(
            f"The evidence hardly tells these settings apart (within {_ALIKE:g} nats of the best): {'; '.join(alike)}."
        )
    found += _about_edges(tuning)
    if not fitted.settled:
        tuned = "δ and σ" if isinstance(task, Regression) else "δ"
        found.append(
            f"{tuned} had not come to rest after {fitted.rounds} rounds: the final network may gain by another --seed."
        )
    if fitted.at_edge:
        found.append(
            "The evidence has no maximum within the range of δ and σ: the columns say nothing about the target, or "
            "explain it without any noise."
        )
    diverged = sum(not isfinite(trial.evidence) for trial in tuning.trials)
    if diverged:
        found.append(f"{diverged} of {len(tuning.trials)} trainings diverged; their settings were not chosen.")
    return found


def _about_numbers(problem: TableProblem, task: Regression, fitted: Fitted) -> list[str]:
    values = problem.table.numbers(problem.target)
    different = len(set(values.tolist()))
    share = task.noise(fitted.likelihood)["sigma"] / task.target.scale
    found = []
    if different <= _FEW_VALUES:
        found.append(
            f"The target {problem.target!r} has {different} different values only. If they are classes, use --task "
            "classification."
        )
    if share > _UNEXPLAINED:
        found.append(
            f"The noise that the evidence finds is {share:.0%} of the spread of {problem.target!r}: the columns say "
            "next to nothing about it."
        )
    return found


def _alike(tuning: TuningResult) -> list[str]:
    """The other settings with nearly the evidence of the best."""
    means = {words: fmean(values) for words, values in _grouped(tuning, "evidence").items()}
    best = setting_words(tuning.best)
    return [words for words, mean in means.items() if words != best and means[best] - mean < _ALIKE]


def _grouped(tuning: TuningResult, value: str) -> dict[str, list[float]]:
    """A value of all repeats, by the setting in words."""
    groups: dict[str, list[float]] = {}
    for trial in tuning.trials:
        groups.setdefault(setting_words(trial.settings), []).append(trial.values[value])
    return groups


def _about_edges(tuning: TuningResult) -> list[str]:
    """A best setting that is the largest of those tried."""
    found = []
    for name in tuning.names:
        curve = tuning.curve(name)
        last, others = curve.mean[-1], curve.mean[:-1]
        if others and curve.best == curve.settings[-1] and last - max(others) > _ALIKE:
            found.append(
                f"The best {name} is the largest that was tried ({curve.settings[-1]}), and the evidence still grows: "
                f"try larger ones (--{name})."
            )
    return found
