"""The result of tuning: every setting that was tried with its evidence, the best one, and curves to plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite, nan, sqrt
from os import PathLike
from statistics import fmean, stdev
from typing import Any, TypeAlias

from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.files import as_path, read_regular, write_text
from dnn2gp.support.json_text import parsed_json

Setting: TypeAlias = "float | int | str | bool | None"

EVIDENCE = "evidence"
_FORMAT = 1


@dataclass(frozen=True)
class Trial:
    """One setting, tried once, and the resulting values, which include `evidence`."""

    settings: dict[str, Setting]
    values: dict[str, float]
    repeat: int = 0

    @property
    def evidence(self) -> float:
        """The log marginal likelihood of the training data, in nats."""
        return self.values[EVIDENCE]


@dataclass(frozen=True)
class Curve:
    """A value along one setting: means over the repeats, and their standard errors (0 where there is one).

    Both are NaN where a repeat is not finite: a setting that diverges is not better for its other repeats.
    """

    name: str
    value: str
    settings: list[Setting] = field(repr=False)
    mean: list[float] = field(repr=False)
    stderr: list[float] = field(repr=False)

    @property
    def best(self) -> Setting:
        """The setting with the largest mean."""
        finite = [mean if isfinite(mean) else -float("inf") for mean in self.mean]
        return self.settings[finite.index(max(finite))]


@dataclass(frozen=True)
class TuningResult:
    """The trials of `tune.grid`, `tune.gradient` or `tune.study`, or of `convert(..., prior_precision="evidence")`."""

    method: str
    trials: tuple[Trial, ...] = field(repr=False)
    best: dict[str, Setting]
    """The chosen setting."""
    evidence: float
    """The log evidence of the chosen setting, its mean over the repeats."""
    converged: bool = True
    """Whether the search ended by itself rather than at its limit of rounds or trials."""
    notes: tuple[str, ...] = field(default=())
    """Remarks and warnings about the choice."""
    gp: Any = field(default=None, repr=False, compare=False)
    """The GP of the chosen setting, where there is one in memory; not saved."""
    network: Any = field(default=None, repr=False, compare=False)
    """The network that was trained with it; not saved."""

    @staticmethod
    def of(method: str, trials: Sequence[Trial], **more: Any) -> TuningResult:
        """The result in which the setting with the largest mean evidence is the best one."""
        groups = _grouped(trials)
        means = [(mean_and_error([trial.evidence for trial in group])[0], group[0].settings) for group in groups]
        finite = [pair for pair in means if isfinite(pair[0])]
        if not finite:
            raise InputError(
                f"tune: none of the {len(trials)} trials has a finite evidence. Check their values: networks that "
                "diverge in training need a smaller learning rate or other initial weights."
            )
        evidence, best = max(finite, key=lambda pair: pair[0])
        return TuningResult(method, tuple(trials), dict(best), evidence, **more)

    @property
    def names(self) -> list[str]:
        """The settings that were tuned."""
        return list(self.best)

    @property
    def values(self) -> list[str]:
        """The names of the values of every trial, the evidence first."""
        common = [name for name in self.trials[0].values if all(name in trial.values for trial in self.trials)]
        return sorted(common, key=lambda name: name != EVIDENCE)

    def curve(self, name: str, value: str = EVIDENCE) -> Curve:
        """`value` as a function of the setting `name`, with the other settings as in the best one."""
        if name not in self.best:
            raise InputError(f"curve: expected one of the settings {self.names}; got {name!r}.")
        others = {other: setting for other, setting in self.best.items() if other != name}
        along = [trial for trial in self.trials if all(trial.settings.get(k) == v for k, v in others.items())]
        if not along or any(value not in trial.values for trial in along):
            raise InputError(f"curve: expected one of the values {self.values}; got {value!r}.")
        groups = _grouped(along)
        if all(isinstance(group[0].settings[name], int | float) for group in groups):
            groups.sort(key=lambda group: float(group[0].settings[name]))  # pyright: ignore[reportArgumentType]
        numbers = [[trial.values[value] for trial in group] for group in groups]
        means, errors = zip(*map(mean_and_error, numbers), strict=True)
        return Curve(name, value, [group[0].settings[name] for group in groups], list(means), list(errors))

    def __str__(self) -> str:
        """The choice in one line, followed by the notes."""
        chosen = ", ".join(f"{name} = {_short(value)}" for name, value in self.best.items())
        lines = [f"{chosen}: log evidence {self.evidence:.2f} ({len(self.trials)} trials, {self.method})", *self.notes]
        return "\n".join(lines)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the result as JSON, completely or not at all."""
        write_text(as_path(path), json.dumps(self.state(), indent=1))

    @staticmethod
    def load(path: str | PathLike[str]) -> TuningResult:
        """The inverse of `save`."""
        return TuningResult.from_state(parsed_json(read_regular(as_path(path)), f"{path}: tuning result"), str(path))

    def state(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "format": _FORMAT,
            "method": self.method,
            "best": self.best,
            "evidence": self.evidence,
            "converged": self.converged,
            "notes": list(self.notes),
            "trials": [asdict(trial) for trial in self.trials],
        }

    @staticmethod
    def from_state(state: object, where: str = "the state") -> TuningResult:
        """The inverse of `state`."""
        if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
            raise FileFormatError(f"{where} is not a tuning result of format {_FORMAT}. Give a file that save wrote.")
        try:
            return TuningResult(
                method=str(state["method"]),
                trials=tuple(
                    Trial(dict(each["settings"]), dict(each["values"]), int(each["repeat"])) for each in state["trials"]
                ),
                best=dict(state["best"]),
                evidence=float(state["evidence"]),
                converged=bool(state["converged"]),
                notes=tuple(state["notes"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FileFormatError(f"{where} is not a complete tuning result ({error!r}). Save it again.") from error


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, 0 for one value; both are NaN if a value is not finite."""
    if not all(isfinite(value) for value in values):
        return nan, nan
    return fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _grouped(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Trials of the same setting together, in the order of their first."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(json.dumps(trial.settings, sort_keys=True), []).append(trial)
    return list(groups.values())


def _short(value: Setting) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
