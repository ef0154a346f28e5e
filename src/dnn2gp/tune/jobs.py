"""(setting × repeat) jobs, run in parallel by joblib; each is stored when it is finished, and none runs twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import TypeAlias

from dnn2gp.evidence.tuning_result import EVIDENCE, Setting, Trial
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.support.errors import FileFormatError, InputError, OtherWorkError
from dnn2gp.support.files import write_text
from dnn2gp.support.optional import needs_extra
from dnn2gp.support.progress import bar
from dnn2gp.tune.one_thread import one_thread
from dnn2gp.tune.processes import ProcessId, end_with
from dnn2gp.tune.results_folder import keep_purpose

Outcome: TypeAlias = "float | Mapping[str, float] | GaussianProcess"
Fit: TypeAlias = "Callable[..., Outcome]"


@dataclass(frozen=True)
class Job:
    """One setting and one repeat."""

    settings: dict[str, Setting]
    repeat: int

    @property
    def key(self) -> str:
        """The name of its file, determined by setting and repeat."""
        text = json.dumps([self.settings, self.repeat], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:16]


class JobFolder:
    """A folder with one file per finished job, and a file with the purpose of them all."""

    def __init__(self, folder: Path, purpose: Mapping[str, object], resume: bool) -> None:
        """Create the folder or, with `resume`, continue in one that has the same purpose."""
        self.folder = folder.absolute()  # workers may have a different working directory
        self._purpose = keep_purpose(self.folder, purpose, resume=resume)
        self._jobs = self.folder / "jobs"
        self._jobs.mkdir(exist_ok=True)

    def save(self, job: Job, trial: Trial) -> None:
        """Write the file of a finished job, atomically."""
        write_text(self._jobs / f"{job.key}.json", json.dumps({**self._label(job), "values": trial.values}))

    def load(self, job: Job) -> Trial | None:
        """The result of a job, if it is finished.

        Raises:
            OtherWorkError: If the file belongs to another job, or to a tuning with another purpose.
            FileFormatError: If it does not hold a result.
        """
        path = self._jobs / f"{job.key}.json"
        if not path.exists():
            return None
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            values = {name: float(value) for name, value in state["values"].items()}
            trial = Trial(job.settings, {EVIDENCE: values[EVIDENCE], **values}, job.repeat)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise FileFormatError(
                f"{path} does not hold the result of a job ({error!r}). Delete it to run the job again."
            ) from error
        other = [name for name, value in self._label(job).items() if state.get(name) != value]
        if other:
            raise OtherWorkError(
                f"{path}: expected the result of this job of this tuning; got one with another or no "
                f"{' and '.join(other)}. Delete the file to run the job again."
            )
        return trial

    def _label(self, job: Job) -> dict[str, object]:
        """What a result must say that it belongs to."""
        return {"purpose": self._purpose, "settings": job.settings, "repeat": job.repeat}


def run_jobs(fit: Fit, jobs: Sequence[Job], folder: JobFolder | None, num_jobs: int | None) -> list[Trial]:
    """The trials of all jobs in order; those on disk are not run again.

    `num_jobs` is the number of processes on this machine; None leaves it to `joblib.parallel_config`, which may name a
    cluster.
    """
    with needs_extra("tune", "tune.grid"):
        import joblib

    found = {job.key: trial for job in jobs if folder is not None and (trial := folder.load(job)) is not None}
    left = [job for job in jobs if job.key not in found]
    best = max((trial.evidence for trial in found.values() if isfinite(trial.evidence)), default=-float("inf"))
    with bar("tuning", len(jobs), len(found)) as advance:
        owner = ProcessId.own()
        work = (joblib.delayed(_run)(fit, job, folder, owner) for job in left)
        num_jobs = _whole_cluster() if num_jobs is None else num_jobs
        if num_jobs is not None:  # a worker without a job would not watch its owner
            num_jobs = min(joblib.effective_n_jobs(num_jobs), max(1, len(left)))
        finished = joblib.Parallel(n_jobs=num_jobs, return_as=_order())(work)
        for key, trial in finished:  # pyright: ignore[reportGeneralTypeIssues]
            found[key] = trial
            best = max(best, trial.evidence) if isfinite(trial.evidence) else best
            advance(f"best log evidence so far {best:.2f}")
    return [found[job.key] for job in jobs]


def _whole_cluster() -> int | None:
    """−1, all of it, for a cluster that was named without a number of jobs: joblib takes one process of Ray then."""
    from joblib.parallel import get_active_backend

    backend, configured = get_active_backend()
    return -1 if configured is None and not type(backend).__module__.startswith("joblib.") else None


def _order() -> str:
    """Results as they finish, or all at the end if the backend of `joblib.parallel_config` cannot stream them (Ray)."""
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    return "generator_unordered" if getattr(backend, "supports_return_generator", False) else "list"


def _run(fit: Fit, job: Job, folder: JobFolder | None, owner: ProcessId) -> tuple[str, Trial]:
    """Run one job with one thread, in whichever process, which ends soon after its owner."""
    end_with(owner)
    with one_thread():
        trial = Trial(job.settings, values_of(fit(**job.settings, repeat=job.repeat)), job.repeat)
    if folder is not None:
        folder.save(job, trial)
    return job.key, trial


def values_of(outcome: object) -> dict[str, float]:
    """The values of a trial, evidence first, from a number, a mapping with "evidence", or a GP."""
    if isinstance(outcome, GaussianProcess):
        return {EVIDENCE: outcome.evidence().value}
    if isinstance(outcome, Mapping) and EVIDENCE in outcome:
        return {EVIDENCE: float(outcome[EVIDENCE]), **{str(name): float(value) for name, value in outcome.items()}}
    if isinstance(outcome, int | float) and not isinstance(outcome, bool):
        return {EVIDENCE: float(outcome)}
    raise InputError(
        "tune: expected the function to return the log evidence as a number, a mapping with the key 'evidence', or the "
        f"GaussianProcess of convert; got {outcome!r}."
    )
