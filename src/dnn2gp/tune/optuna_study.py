"""How `tune.study` works with Optuna: a journal on disk, seeds by finished trials, dead trials given up."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib
import optuna
import psutil
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from dnn2gp.progress import bar
from dnn2gp.tune.jobs import one_thread, values_of
from dnn2gp.tuning_result import Trial, TuningResult

_NAME = "evidence"
_OWNER, _VALUES = "process", "values"


def run_study(
    objective: Callable[[optuna.Trial], Any],
    num_trials: int,
    path: Path | None,
    num_jobs: int,
    seed: int,
    sampler: Callable[[int], optuna.samplers.BaseSampler] | None,
) -> TuningResult:
    """`tune.study`, its arguments checked; `path` is the journal of the study, or None for one in memory."""
    worker = _Worker(objective, num_trials, seed, sampler or _tpe, path)
    with _quiet():
        if num_jobs == 1:
            return _result(worker.run())
        joblib.Parallel(n_jobs=num_jobs)(joblib.delayed(worker.work)() for _ in range(num_jobs))
        return _result(worker.open())


class _Worker:
    """One process at work on a study."""

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
        """The study, made if it is not there."""
        storage: BaseStorage = (
            InMemoryStorage() if self.path is None else JournalStorage(JournalFileBackend(str(self.path)))
        )
        return optuna.create_study(storage=storage, study_name=_NAME, direction="maximize", load_if_exists=True)

    def work(self) -> None:
        """`run`, where nothing is to be sent back."""
        with _quiet():
            self.run()

    def run(self) -> optuna.Study:
        """Trials, until as many are finished or at work as were asked for."""
        opened = self.open()
        _give_up_dead(opened)
        with bar("tuning", self.num_trials, len(_finished(opened))) as advance:
            while True:
                busy = opened.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
                done = _finished(opened)
                if len(done) + len(busy) >= self.num_trials:
                    return opened
                self._try(opened, len(done))
                advance(f"best log evidence so far {opened.best_value:.2f}")

    def _try(self, opened: optuna.Study, done: int) -> None:
        opened.sampler = self.sampler(self.seed + 1_000_003 * done)
        trial = opened.ask()
        trial.set_user_attr(_OWNER, _this_process())
        try:
            with one_thread():
                values = values_of(self.objective(trial))
        except BaseException:
            opened.tell(trial, state=TrialState.FAIL)
            raise
        trial.set_user_attr(_VALUES, values)
        opened.tell(trial, values["evidence"])


def _tpe(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=seed)


def _finished(opened: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return opened.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _this_process() -> list[object]:
    return [socket.gethostname(), os.getpid(), psutil.Process().create_time()]


def _give_up_dead(opened: optuna.Study) -> None:
    """Trials whose process on this machine is gone will never be finished: they make room for others."""
    for trial in opened.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        host, process, started = trial.user_attrs.get(_OWNER, [socket.gethostname(), -1, 0.0])
        if host == socket.gethostname() and not _alive(process, started):
            opened.tell(trial.number, state=TrialState.FAIL)


def _alive(process: int, started: float) -> bool:
    try:
        return process > 0 and abs(psutil.Process(process).create_time() - started) < 1
    except psutil.NoSuchProcess:
        return False


def _result(opened: optuna.Study) -> TuningResult:
    trials = [Trial(dict(each.params), dict(each.user_attrs[_VALUES])) for each in _finished(opened)]
    return TuningResult.of("study", trials)


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna's own messages kept down to warnings, for the duration."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
