"""The findings of a tuning run in words, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from dnn2gp.apps.table_tuning.config import TableTuningConfig
from dnn2gp.apps.table_tuning.problem import TableProblem
from dnn2gp.apps.table_tuning.tasks import Regression, Task
from dnn2gp.apps.table_tuning.training import TableFit
from dnn2gp.apps.tables.columns import numbers_the_rows
from dnn2gp.apps.tables.dates import EPOCH
from dnn2gp.evidence.tuning_result import Setting, TuningResult, mean_and_error
from dnn2gp.tune.restarts import Fitted

# Settings whose mean log evidences differ by less are about equally good: a factor of e² in probability.
_ALIKE = 2.0
# With noise of at least this share of the target's standard deviation, next to nothing is explained.
_UNEXPLAINED = 0.95
_FEW_VALUES = 10
# Columns that are described in the terminal; the report describes all.
_SHOWN = 30


def setting_words(settings: Mapping[str, Setting]) -> str:
    """A setting, for example: width 20, depth 1."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def data_words(problem: TableProblem) -> str:
    """The size of the table, and what was left out or filled in."""
    used = problem.columns.names
    counts = {
        "numeric": len(problem.columns.numeric),
        "categorical": len(problem.columns.categories),
        "of dates": len(problem.columns.dates),
    }
    columns = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    left_out = [name for name in problem.table.names if name != problem.target and name not in used]
    parts = [f"{problem.table.name}: {len(problem.table):,} rows, {len(used)} columns ({columns})"]
    if left_out:
        parts.append(f"left out: {', '.join(left_out)}")
    if problem.impute:
        parts.append("missing cells filled in")
    return "; ".join(parts) + "."


def taken_for(problem: TableProblem) -> dict[str, str]:
    """What each column of the table was taken for, in words: what a user has to check."""
    return {name: _taken_for(problem, name) for name in problem.table.names}


def _taken_for(problem: TableProblem, name: str) -> str:
    columns = problem.columns
    if name == problem.target:
        return "the target"
    if name in columns.categories:
        return f"a category with {len(columns.categories[name])} levels"
    if name in columns.dates:
        return f"a date, as the number of {EPOCH}"
    if name in columns.numeric:
        if not numbers_the_rows(problem.table, name):
            return "a number"
        return f"a number; it counts up by one: if it only numbers the rows, leave it out with --drop {name!r}"
    return "left out, because it is constant" if name not in problem.dropped else "left out, as asked (--drop)"


def taken_for_words(problem: TableProblem) -> str:
    """The same for the terminal, in one line for as many columns as a screen holds."""
    found = [f"{name}: {words}" for name, words in taken_for(problem).items() if name != problem.target]
    more = f"; and {len(found) - _SHOWN} more, see report.html" if len(found) > _SHOWN else ""
    return f"Columns: {'; '.join(found[:_SHOWN])}{more}."


def held_out(tuning: TuningResult, fit: TableFit, calibration: str) -> str:
    """The test error of the chosen setting, compared with the best setting and with a constant prediction."""
    name, label = "test_error", fit.task.short_label
    means = {words: mean_and_error(values)[0] for words, values in _grouped(tuning, name).items()}
    chosen = setting_words(tuning.best)
    finite = {words: mean for words, mean in means.items() if isfinite(mean)}
    best = min(finite, key=lambda words: finite[words], default=None)
    if best is None or best == chosen:
        other = "no setting has a finite one" if best is None else "the smallest of all settings"
    else:
        other = f"smallest: {finite[best]:.4g} with {best}"
    constant = fit.task.constant_error(fit.training.targets, fit.held_out.targets)
    return f"Test {label}: {means[chosen]:.4g} ({other}; {fit.task.constant} gives {constant:.4g}). {calibration}"


def notes(
    config: TableTuningConfig,
    problem: TableProblem,
    tuning: TuningResult,
    fitted: Fitted,
    task: Task,
    widths_left_out: Sequence[int],
) -> list[str]:
    """What a user should know before trusting the choice."""
    found = []
    if widths_left_out:
        left = ", ".join(map(str, widths_left_out))
        found.append(
            f"The default widths {left} were skipped because they give too many weights. To try them, pass --width."
        )
    if config.max_rows is not None:
        found.append(f"Only the first {len(problem.table)} rows were used (preset smoke).")
    if isinstance(task, Regression):
        found += _about_regression(problem, task, fitted)
    alike = _alike(tuning)
    if alike:
        found.append(
            f"The evidence of these settings is within {_ALIKE:g} nats of the best, so they are about equally good: "
            f"{'; '.join(alike)}."
        )
    found += _about_edges(tuning)
    if not fitted.settled:
        tuned = "δ and σ" if isinstance(task, Regression) else "δ"
        found.append(
            f"{tuned} had not converged after {fitted.rounds} rounds. Another --seed may give a better final network."
        )
    if fitted.at_edge:
        found.append(
            "The evidence has no maximum within the range of δ and σ: the columns either say nothing about the "
            "target or predict it without noise."
        )
    diverged = sum(not isfinite(trial.evidence) for trial in tuning.trials)
    if diverged:
        found.append(f"{diverged} of {len(tuning.trials)} training runs diverged. Their settings were not chosen.")
    return found


def _about_regression(problem: TableProblem, task: Regression, fitted: Fitted) -> list[str]:
    values = problem.table.numbers(problem.target)
    different = len(set(values.tolist()))
    share = task.noise(fitted.likelihood)["sigma"] / task.target.scale
    found = []
    if different <= _FEW_VALUES:
        found.append(
            f"The target {problem.target!r} has only {different} different values. If they are classes, use --task "
            "classification."
        )
    if share > _UNEXPLAINED:
        found.append(
            f"The noise σ is {share:.0%} of the standard deviation of {problem.target!r}: the columns say next to "
            "nothing about it."
        )
    return found


def _alike(tuning: TuningResult) -> list[str]:
    """The other settings whose evidence is close to that of the best."""
    means = {words: mean_and_error(values)[0] for words, values in _grouped(tuning, "evidence").items()}
    best = setting_words(tuning.best)
    return [words for words, mean in means.items() if words != best and means[best] - mean < _ALIKE]


def _grouped(tuning: TuningResult, value: str) -> dict[str, list[float]]:
    """The values of all repeats, grouped by the setting in words."""
    groups: dict[str, list[float]] = {}
    for trial in tuning.trials:
        groups.setdefault(setting_words(trial.settings), []).append(trial.values[value])
    return groups


def _about_edges(tuning: TuningResult) -> list[str]:
    """Notes about settings whose best value is the largest that was tried."""
    found = []
    for name in tuning.names:
        curve = tuning.curve(name)
        last, others = curve.mean[-1], [mean for mean in curve.mean[:-1] if isfinite(mean)]
        if others and curve.best == curve.settings[-1] and last - max(others) > _ALIKE:
            found.append(
                f"The best {name} is the largest that was tried ({curve.settings[-1]}), and the evidence is still "
                f"growing. Try larger values (--{name})."
            )
    return found
