"""Tuning on a grid: every setting, several times, as in the paper's Figs. 5 and 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from os import PathLike
from pathlib import Path

from dnn2gp.evidence.tuning_result import Setting, TuningResult
from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.progress import show_progress
from dnn2gp.tune.jobs import Fit, Job, JobFolder, run_jobs


def grid(
    fit: Fit,
    settings: Mapping[str, Sequence[Setting]],
    *,
    repeats: int = 1,
    folder: str | PathLike[str] | None = None,
    resume: bool = False,
    num_jobs: int | None = None,
    purpose: Mapping[str, object] | None = None,
    progress: bool = False,
) -> TuningResult:
    """Call `fit(repeat=r, **setting)` for every setting and repeat; the best setting has the largest mean evidence.

    fit       trains a network with these settings and returns its log evidence, a mapping with "evidence" and any other
              values of interest ("test_error"), or the GaussianProcess; `repeat` is a seed, or the index of a data set
    settings  name → values; all combinations are tried
    folder    where each finished job is stored; `resume` continues from the jobs that it holds
    num_jobs  processes on this machine, each with one thread; by default the setting of `joblib.parallel_config`
    purpose   what the results depend on besides the settings (data, a version of `fit`); resuming in a folder with a
              different purpose raises an error. `fit` itself is not compared, so describe it here
    """
    if not callable(fit):
        raise InputError(f"fit: expected a function that takes the settings and repeat; got {fit!r}.")
    if not settings or any(isinstance(values, str) or not len(values) for values in settings.values()):
        raise InputError(f"settings: expected names mapped to non-empty lists of values; got {dict(settings)!r}.")
    repeats = whole_number("repeats", repeats)
    if num_jobs is not None:
        num_jobs = whole_number("num_jobs", num_jobs)
    if resume and folder is None:
        raise InputError("resume: expected a folder to resume from; got none. Pass folder=.")
    known = {name: [_plain(value) for value in values] for name, values in settings.items()}
    jobs = [
        Job(dict(zip(known, values, strict=True)), repeat)
        for values in product(*known.values())
        for repeat in range(repeats)
    ]
    own = {"settings": known, "repeats": repeats, **(purpose or {})}
    place = None if folder is None else JobFolder(Path(folder), own, resume)
    with show_progress(progress):
        return TuningResult.of("grid", run_jobs(fit, jobs, place, num_jobs))


def _plain(value: object) -> Setting:
    """A setting as a JSON value; scalars of NumPy or torch become Python numbers."""
    item = getattr(value, "item", None)
    plain = item() if callable(item) else value
    if plain is not None and not isinstance(plain, int | float | str | bool):
        raise InputError(f"settings: expected numbers, strings, booleans or None; got {value!r}.")
    return plain
