"""The Optuna part of `tune.study`: a journal on disk, one seed per trial, and recovery of killed trials."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import astuple
from math import inf, isfinite
from pathlib import Path
from typing import Any, BinaryIO, final

import joblib
import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from dnn2gp.evidence.tuning_result import Trial, TuningResult
from dnn2gp.support.errors import FileFormatError
from dnn2gp.support.folders import locked
from dnn2gp.support.progress import bar
from dnn2gp.tune.jobs import values_of
from dnn2gp.tune.one_thread import one_thread
from dnn2gp.tune.processes import ProcessId, end_with

_NAME = "evidence"
_OWNER, _VALUES = "process", "values"
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
# Seconds between two checks of the trials of other processes.
_PAUSE = 0.1
# Bytes that are read at a time from the end of a journal.
_TAIL = 2**16


def run_study(
    objective: Callable[[optuna.Trial], Any],
    num_trials: int,
    path: Path | None,
    num_jobs: int,
    seed: int,
    sampler: Callable[[int], optuna.samplers.BaseSampler] | None,
) -> TuningResult:
    """`tune.study` after its checks; `path` is the journal of the study, or None for a study in memory."""
    worker = _Worker(objective, num_trials, seed, sampler or _tpe, path)
    with _quiet():
        if num_jobs == 1:
            return _result(worker.run())
        owner = ProcessId.own()
        joblib.Parallel(n_jobs=num_jobs)(joblib.delayed(worker.work)(owner) for _ in range(num_jobs))
        return _result(worker.open())


class _Worker:
    """One process that works on a study."""

    def __init__(
        self,
        objective: Callable[[optuna.Trial], Any],
        num_trials: int,
        seed: int,
        sampler: Callable[[int], optuna.samplers.BaseSampler],
        path: Path | None,
    ) -> None:
        self.objective, self.num_trials, self.seed, self.sampler, self.path = objective, num_trials, seed, sampler, path

    def open(self) -> optuna.Study:
        """The study, created if it does not exist.

        Raises:
            FileFormatError: If the journal is damaged other than by a kill, which can only cut its last line.
        """
        try:
            storage: BaseStorage = InMemoryStorage() if self.path is None else _journal(self.path)
            return optuna.create_study(storage=storage, study_name=_NAME, direction="maximize", load_if_exists=True)
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError) as error:
            raise FileFormatError(
                f"{self.path}: expected one record of the study per line; got a damaged line ({error!r}). Restore the "
                "file from a backup, or start the study again in another folder."
            ) from error

    def work(self, owner: ProcessId) -> None:
        """`run` without a result, for worker processes, which end soon after their owner."""
        end_with(owner)
        with _quiet():
            self.run()

    def run(self) -> optuna.Study:
        """Run trials until enough of them have ended; waits for those of other processes."""
        opened = self.open()
        with bar("tuning", self.num_trials, len(_ended(opened))) as advance:
            while True:
                trial = self._begun(opened)
                if trial is not None:
                    self._try(opened, trial)
                    advance(f"best log evidence so far {_best(opened):.2f}")
                elif len(_ended(opened)) >= self.num_trials:
                    return opened
                else:
                    time.sleep(_PAUSE)

    def _begun(self, opened: optuna.Study) -> optuna.Trial | None:
        """The next trial, unless enough have ended or are running."""
        with self._alone():
            _give_up_dead(opened)
            busy = opened.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            count = len(_ended(opened)) + len(busy)
            if count >= self.num_trials:
                return None
            opened.sampler = self.sampler((self.seed + 1_000_003 * count) % 2**32)  # NumPy's largest seed
            trial = opened.ask()
            trial.set_user_attr(_OWNER, list(astuple(ProcessId.own())))
            return trial

    def _alone(self) -> AbstractContextManager[None]:
        return nullcontext() if self.path is None else locked(self.path.with_suffix(".lock"))

    def _try(self, opened: optuna.Study, trial: optuna.Trial) -> None:
        try:
            with one_thread():
                values = values_of(self.objective(trial))
        except optuna.TrialPruned:
            opened.tell(trial, state=TrialState.PRUNED)
            return
        except BaseException:
            opened.tell(trial, state=TrialState.FAIL)
            raise
        trial.set_user_attr(_VALUES, values)
        evidence = values["evidence"]
        opened.tell(trial, evidence if isfinite(evidence) else -inf)  # NaN would not count: no end


@final
class _AppendLock:
    """Held while records are appended to a journal, which then ends with a whole line.

    Optuna's own lock is a file, which a killed process leaves behind for half a minute. And it appends to whatever the
    file ends with: after a kill in the midst of a record, the next record would continue the same line, and no reader
    gets beyond it.
    """

    def __init__(self, journal: Path) -> None:
        self._journal, self._held = journal, ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock, and drop an incomplete last line: nobody has read it, and its writer is gone."""
        self._held.enter_context(locked(self._journal.with_suffix(".append.lock")))
        with self._journal.open("rb+") as file:
            file.truncate(_whole_lines(file))
        return True

    def release(self) -> None:
        """Release the lock."""
        self._held.close()


def _whole_lines(file: BinaryIO) -> int:
    """The length of a file up to the end of its last complete line."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _TAIL)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _journal(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path), _AppendLock(path)))  # pyright: ignore[reportArgumentType] (base is private)


def _tpe(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=seed)


def _ended(opened: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return opened.get_trials(deepcopy=False, states=_ENDED)


def _best(opened: optuna.Study) -> float:
    """The largest evidence so far."""
    found = (each.user_attrs[_VALUES]["evidence"] for each in _complete(opened))
    return max((evidence for evidence in found if isfinite(evidence)), default=-inf)


def _complete(opened: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return opened.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _give_up_dead(opened: optuna.Study) -> None:
    """Mark trials as failed if their process on this machine is gone, so that others can take their place.

    Called with the lock, under which trials get their owner: a process of a trial without one was killed in between.
    """
    for trial in opened.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        owner = trial.user_attrs.get(_OWNER)
        if owner is None or ProcessId(*owner).gone:
            opened.tell(trial.number, state=TrialState.FAIL)


def _result(opened: optuna.Study) -> TuningResult:
    trials = [Trial(dict(each.params), dict(each.user_attrs[_VALUES])) for each in _complete(opened)]
    return TuningResult.of("study", trials)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Optuna's messages below warnings inside the block."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
