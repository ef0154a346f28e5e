"""tune.study: an Optuna study on disk, by one process or several."""

from __future__ import annotations

import optuna
import pytest

from dnn2gp import tune
from dnn2gp.support.errors import InputError, OtherWorkError


def objective(trial):
    width = trial.suggest_int("width", 1, 20)
    slope = trial.suggest_float("slope", 0.1, 10.0, log=True)
    return {"evidence": -((width - 7) ** 2) - (slope - 1) ** 2, "error": 1.0 * width}


def test_the_best_trial_and_all_that_is_known_of_it():
    found = tune.study(objective, num_trials=25)
    assert len(found.trials) == 25
    best = max(found.trials, key=lambda trial: trial.evidence)
    assert (found.best, found.evidence) == (best.settings, best.evidence)
    assert set(best.values) == {"evidence", "error"}
    assert found.evidence > -5  # random search does that in one of 25 trials with probability 0.9; TPE surely


def test_one_seed_one_study():
    assert tune.study(objective, num_trials=12) == tune.study(objective, num_trials=12)
    assert tune.study(objective, num_trials=12) != tune.study(objective, num_trials=12, seed=1)


def test_a_study_that_is_gone_on_with_is_as_if_it_had_not_stopped(tmp_path):
    tune.study(objective, num_trials=7, folder=tmp_path)
    with pytest.raises(InputError, match="resume"):
        tune.study(objective, num_trials=15, folder=tmp_path)
    resumed = tune.study(objective, num_trials=15, folder=tmp_path, resume=True)
    assert resumed == tune.study(objective, num_trials=15)


@pytest.mark.slow
def test_processes_share_the_trials(tmp_path):
    """As many as were asked for, no more, and no two of them drawn by the same seed; all wait for the last."""
    for attempt in range(3):
        found = tune.study(objective, num_trials=5, folder=tmp_path / str(attempt), num_jobs=3)
        assert len(found.trials) == 5
        assert len({trial.settings["slope"] for trial in found.trials}) == 5


def test_an_evidence_that_is_no_number_counts_and_is_not_chosen(tmp_path):
    def sometimes(trial):
        width = trial.suggest_int("width", 1, 20)
        return float("nan") if trial.number in (0, 3) else -float(width)

    found = tune.study(sometimes, num_trials=6, folder=tmp_path)
    assert len(found.trials) == 6
    assert found.evidence == max(t.evidence for t in found.trials if t.evidence == t.evidence)
    with pytest.raises(InputError, match="none of the 2 trials has a finite evidence"):
        tune.study(lambda trial: float("nan"), num_trials=2)


def test_pruned_trials_count():
    def prunes(trial):
        width = trial.suggest_int("width", 1, 20)
        if trial.number % 2:
            raise optuna.TrialPruned
        return float(width)

    assert len(tune.study(prunes, num_trials=6).trials) == 3


def test_a_folder_of_another_purpose_is_not_gone_on_with(tmp_path):
    tune.study(objective, num_trials=2, folder=tmp_path, purpose={"data": "a"})
    with pytest.raises(OtherWorkError, match="tuning"):
        tune.study(objective, num_trials=3, folder=tmp_path, purpose={"data": "b"}, resume=True)
    with pytest.raises(OtherWorkError, match="tuning"):
        tune.study(objective, num_trials=3, folder=tmp_path, purpose={"data": "a"}, seed=1, resume=True)
    assert len(tune.study(objective, num_trials=3, folder=tmp_path, purpose={"data": "a"}, resume=True).trials) == 3


def test_a_trial_that_fails_is_told_and_does_not_count(tmp_path):
    def fails(trial):
        trial.suggest_int("width", 1, 3)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        tune.study(fails, num_trials=3, folder=tmp_path)
    assert len(tune.study(objective, num_trials=3, folder=tmp_path, resume=True).trials) == 3


def test_other_samplers_and_optunas_own_words():
    before = optuna.logging.get_verbosity()
    found = tune.study(objective, num_trials=3, sampler=lambda seed: optuna.samplers.RandomSampler(seed=seed))
    assert len(found.trials) == 3
    assert optuna.logging.get_verbosity() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_trials": 0}, "num_trials"),
        ({"resume": True}, "resume"),
        ({"num_jobs": 2}, "folder"),
        ({"objective": lambda trial: None}, "log evidence"),
    ],
)
def test_what_cannot_be_studied_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        tune.study(**{"objective": objective, "num_trials": 2, **change})
