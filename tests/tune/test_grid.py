"""tune.grid: every setting and repeat once, on disk at once, in processes with one thread."""

from __future__ import annotations

import json
from math import isfinite

import joblib
import pytest
import torch

from dnn2gp import GaussianLikelihood, convert, tune
from dnn2gp.support.errors import FileFormatError, InputError, OtherWorkError
from dnn2gp.tune.jobs import Job

from problems import problem


def fit(width, repeat, delta=1.0):
    return {
        "evidence": -((width - 3) ** 2) - delta + 0.1 * repeat,
        "error": float(width),
        "threads": torch.get_num_threads(),
    }


def test_all_combinations_and_the_largest_mean_evidence():
    found = tune.grid(fit, {"width": [1, 3, 9], "delta": [0.5, 2.0]}, repeats=3)
    assert len(found.trials) == 18
    assert found.best == {"width": 3, "delta": 0.5}
    assert found.evidence == pytest.approx(-0.5 + 0.1)
    assert {trial.values["threads"] for trial in found.trials} == {1}
    curve = found.curve("width")
    assert curve.settings == [1, 3, 9]
    assert curve.mean == pytest.approx([-4.4, -0.4, -36.4])
    assert curve.stderr == pytest.approx([0.1 / 3**0.5] * 3)
    assert found.curve("width", "error").mean == [1.0, 3.0, 9.0]


def test_threads_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        tune.grid(fit, {"width": [1]})
        assert torch.get_num_threads() == 3
        with joblib.parallel_config(backend="threading", n_jobs=3):
            found = tune.grid(fit, {"width": [1, 2, 3, 4, 5, 6]})
        assert {trial.values["threads"] for trial in found.trials} == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_folder_is_found_from_elsewhere(tmp_path, monkeypatch):
    """Workers with another working directory write to the same place."""
    monkeypatch.chdir(tmp_path)

    def wanders(width, repeat):
        monkeypatch.chdir("/")
        return float(width)

    tune.grid(wanders, {"width": [1, 2]}, folder="here")
    assert len(list((tmp_path / "here" / "jobs").iterdir())) == 2


@pytest.mark.slow
def test_processes_give_the_same_in_the_same_order(tmp_path):
    settings = {"width": [5, 1, 3]}
    alone = tune.grid(fit, settings, repeats=2)
    together = tune.grid(fit, settings, repeats=2, num_jobs=2, folder=tmp_path / "a")
    assert alone == together
    for backend in ("threading", "multiprocessing"):  # the second, as Ray's, returns everything at the end
        with joblib.parallel_config(backend=backend, n_jobs=2):
            assert tune.grid(fit, settings, repeats=2) == alone


def test_finished_jobs_are_not_run_again(tmp_path):
    settings = {"width": [1, 3]}
    first = tune.grid(fit, settings, folder=tmp_path)
    assert len(list((tmp_path / "jobs").iterdir())) == 2

    def never(**_):
        raise AssertionError("a finished job was run again")

    assert tune.grid(never, settings, folder=tmp_path, resume=True) == first
    (tmp_path / "jobs" / f"{Job({'width': 3}, 0).key}.json").unlink()
    with pytest.raises(AssertionError, match="run again"):
        tune.grid(never, settings, folder=tmp_path, resume=True)


def test_a_job_that_fails_leaves_the_others(tmp_path):
    def fails(width, repeat):
        if width == 3:
            raise RuntimeError("no")
        return -1.0

    with pytest.raises(RuntimeError, match="no"):
        tune.grid(fails, {"width": [1, 2, 3]}, folder=tmp_path)
    assert len(list((tmp_path / "jobs").iterdir())) == 2


def test_a_folder_is_not_mixed_up(tmp_path):
    tune.grid(fit, {"width": [1]}, folder=tmp_path, purpose={"data": "a"})
    with pytest.raises(InputError, match="resume"):
        tune.grid(fit, {"width": [1]}, folder=tmp_path, purpose={"data": "a"})
    with pytest.raises(OtherWorkError, match="tuning"):
        tune.grid(fit, {"width": [1]}, folder=tmp_path, purpose={"data": "b"}, resume=True)
    with pytest.raises(OtherWorkError, match="tuning"):
        tune.grid(fit, {"width": [1, 2]}, folder=tmp_path, purpose={"data": "a"}, resume=True)
    (tmp_path / "jobs" / f"{Job({'width': 1}, 0).key}.json").write_text("{")
    with pytest.raises(FileFormatError, match="Delete"):
        tune.grid(fit, {"width": [1]}, folder=tmp_path, purpose={"data": "a"}, resume=True)


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
def test_a_gp_or_a_number_will_do():
    case = problem("gaussian", 6)

    def convert_it(sigma, repeat):
        return convert(case.module, (case.x, case.y), GaussianLikelihood(sigma), 1.0)

    found = tune.grid(convert_it, {"sigma": [0.3, 0.6]})
    assert found.evidence == convert_it(found.best["sigma"], 0).evidence().value
    assert tune.grid(lambda width, repeat: width, {"width": [1, 2]}).best == {"width": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {}}, "settings"),
        ({"settings": {"width": []}}, "settings"),
        ({"settings": {"width": "12"}}, "settings"),
        ({"repeats": 0}, "repeats"),
        ({"resume": True}, "resume"),
        ({"fit": lambda width, repeat: "high"}, "log evidence"),
        ({"fit": lambda width, repeat: {"loss": 1.0}}, "log evidence"),
        ({"fit": lambda width, repeat: float("nan")}, "none of the 1 trials has a finite evidence"),
    ],
)
def test_what_cannot_be_tuned_is_refused(change, message):
    given = {"fit": fit, "settings": {"width": [1]}, **change}
    with pytest.raises(InputError, match=message):
        tune.grid(**given)


def test_the_result_is_saved_and_read_again(tmp_path):
    found = tune.grid(fit, {"width": [1, 3]}, repeats=2)
    found.save(tmp_path / "tuning.json")
    assert tune.TuningResult.load(tmp_path / "tuning.json") == found
    assert json.loads((tmp_path / "tuning.json").read_text())["best"] == {"width": 3}
    assert "width = 3: log evidence" in str(found)
    (tmp_path / "tuning.json").write_text('{"format": 1}')
    with pytest.raises(FileFormatError, match="not a complete tuning result"):
        tune.TuningResult.load(tmp_path / "tuning.json")
    infinite = json.dumps({**found.state(), "evidence": 10**400})
    for content in ("no json", "[" * 100_000, "9" * 10_000, infinite):
        (tmp_path / "tuning.json").write_text(content)
        with pytest.raises(FileFormatError, match="tuning result"):
            tune.TuningResult.load(tmp_path / "tuning.json")
    with pytest.raises(InputError, match="expected one of the settings"):
        found.curve("depth")
    with pytest.raises(InputError, match="expected one of the values"):
        found.curve("width", "depth")


def test_a_job_is_named_by_setting_and_repeat():
    assert Job({"a": 1, "b": 2.0}, 0).key == Job({"b": 2.0, "a": 1}, 0).key
    assert len({Job({"a": 1}, 0).key, Job({"a": 1}, 1).key, Job({"a": 2}, 0).key, Job({"a": "1"}, 0).key}) == 4


@pytest.mark.parametrize("bad", [float("nan"), -float("inf"), float("inf")])
def test_a_repeat_that_is_no_number_breaks_no_curve(bad):
    """Its setting is not chosen and has no mean; the others have theirs."""

    def fit(width, repeat):
        return {"evidence": bad if (width, repeat) == (2, 1) else -float(width + repeat), "error": bad * repeat}

    found = tune.grid(fit, {"width": [1, 2, 3]}, repeats=2)
    curve = found.curve("width")
    assert found.best == {"width": 1}
    assert [isfinite(mean) for mean in curve.mean] == [isfinite(error) for error in curve.stderr] == [True, False, True]
    assert curve.best == 1
    assert not any(map(isfinite, found.curve("width", "error").mean))
