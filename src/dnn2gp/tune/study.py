"""An Optuna study that maximises the evidence: width, depth, learning rate, or any function of a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.support.errors import InputError
from dnn2gp.support.optional import needs_extra
from dnn2gp.support.progress import show_progress
from dnn2gp.tune.purpose import keep_purpose

_FILE = "study.journal"


def study(
    objective: Callable[[Any], Any],
    *,
    num_trials: int,
    folder: str | PathLike[str] | None = None,
    resume: bool = False,
    num_jobs: int = 1,
    seed: int = 0,
    sampler: Callable[[int], Any] | None = None,
    purpose: Mapping[str, object] | None = None,
    progress: bool = False,
) -> TuningResult:
    """Maximise the evidence that `objective(trial)` returns (a number, a mapping with "evidence", or a GP).

    objective   of an `optuna.Trial`: trial.suggest_int("width", 1, 50), …
    num_trials  finished trials in all, those of an earlier run included
    folder      where the study is kept, trial by trial; `resume` goes on with it, and so may other processes meanwhile
    num_jobs    processes on this machine that work on the study together, each with one thread
    sampler     seed → an Optuna sampler; by default TPE. A trial's seed depends on `seed` and on how many trials were
                begun before, so that a study that was killed goes on as if it had not been
    purpose     what the study is of (data, ranges, a version of the objective): a folder with another one is not gone
                on with. The objective itself is not compared

    A trial that is pruned (`optuna.TrialPruned`) counts, and so does one whose evidence is not finite.
    """
    if not callable(objective):
        raise InputError(f"objective: expected a function of an Optuna trial; got {objective!r}.")
    if num_trials < 1 or num_jobs < 1:
        raise InputError(f"expected num_trials ≥ 1 and num_jobs ≥ 1; got {num_trials} and {num_jobs}.")
    path = None if folder is None else Path(folder) / _FILE
    if resume and path is None:
        raise InputError("resume: expected a folder to go on in (folder=); got none.")
    if path is None and num_jobs > 1:
        raise InputError("folder: several processes meet in a folder; give one, or take num_jobs=1.")
    if path is not None:
        if path.exists() and not resume:
            raise InputError(f"{path} holds an earlier study. Go on with it (resume=True), or take another folder.")
        keep_purpose(path.parent, {"seed": seed, **(purpose or {})}, resume=resume)
    with needs_extra("tune", "tune.study"):
        from dnn2gp.tune.optuna_study import run_study  # Optuna takes a while to import

    with show_progress(progress):
        return run_study(objective, num_trials, path, num_jobs, seed, sampler)
