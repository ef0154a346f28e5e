"""Tuning by an Optuna study that maximises the evidence over width, depth, learning rate, or anything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import seed_number, whole_number
from dnn2gp.support.optional import needs_extra
from dnn2gp.support.progress import show_progress
from dnn2gp.tune.results_folder import keep_purpose

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

    objective   a function of an `optuna.Trial`: trial.suggest_int("width", 1, 50), …
    num_trials  the total number of finished trials, including those of an earlier run
    folder      where the study is stored, trial by trial; `resume` continues it, and other processes may join it
    num_jobs    processes on this machine that share the study, each with one thread
    sampler     seed → an Optuna sampler; by default TPE. The seed of a trial depends on `seed` and on the number of
                trials before it, so a study that was killed continues as if it had not been
    purpose     what the results depend on (data, ranges, a version of the objective); resuming in a folder with a
                different purpose raises an error. The objective itself is not compared

    Pruned trials (`optuna.TrialPruned`) count, and so do trials whose evidence is not finite.
    """
    if not callable(objective):
        raise InputError(f"objective: expected a function that takes an Optuna trial; got {objective!r}.")
    num_trials, num_jobs = whole_number("num_trials", num_trials), whole_number("num_jobs", num_jobs)
    seed = seed_number("seed", seed)
    path = None if folder is None else Path(folder) / _FILE
    if resume and path is None:
        raise InputError("resume: expected a folder to resume from; got none. Pass folder=.")
    if path is None and num_jobs > 1:
        raise InputError("folder: expected a folder that the processes share; got none. Pass folder=, or num_jobs=1.")
    if path is not None:
        if path.exists() and not resume:
            raise InputError(f"{path} holds an earlier study. Continue it (resume=True), or choose another folder.")
        keep_purpose(path.parent, {"seed": seed, **(purpose or {})}, resume=resume, results=(_FILE,))
    with needs_extra("tune", "tune.study"):
        from dnn2gp.tune.optuna_study import run_study  # Optuna takes a while to import

    with show_progress(progress):
        return run_study(objective, num_trials, path, num_jobs, seed, sampler)
