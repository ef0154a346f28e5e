"""Results folders: what is not ours is not used, one process at a time, and what a kill leaves goes away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dnn2gp import tune
from dnn2gp.support.errors import FileFormatError, InputError, OtherWorkError
from dnn2gp.support.folders import claimed, remove_stale
from dnn2gp.tune.processes import ProcessId


def objective(trial):
    return -float((trial.suggest_int("width", 1, 20) - 7) ** 2)


def fit(width, repeat):
    return -float(width + repeat)


# A journal that was cut -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_journal_that_is_cut_anywhere_goes_on(tmp_path):
    """In the midst of each of its last lines: what is whole counts, and the study ends as if nothing had happened."""
    expected = tune.study(objective, num_trials=5, folder=tmp_path / "whole")
    content = (tmp_path / "whole" / "study.journal").read_bytes()
    content = content.replace(b",%d," % os.getpid(), b",%d," % 2**30)  # the killed process was another one
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines):
        folder = tmp_path / str(number)
        tune.study(objective, num_trials=1, folder=folder)
        cut = b"".join(lines[:number]) + line[: len(line) // 2]
        (folder / "study.journal").write_bytes(cut)
        found = tune.study(objective, num_trials=5, folder=folder, resume=True)
        assert found == expected, number
        for record in (folder / "study.journal").read_bytes().splitlines():
            json.loads(record)


def test_a_journal_that_is_cut_while_the_study_runs(tmp_path):
    """A process that shares the study was killed in the midst of a record."""

    def cuts(trial):
        with (tmp_path / "study.journal").open("ab") as file:
            file.write(b'{"op_code":5,"worker')
        return objective(trial)

    assert len(tune.study(cuts, num_trials=3, folder=tmp_path).trials) == 3
    assert len(tune.study(objective, num_trials=4, folder=tmp_path, resume=True).trials) == 4


def test_a_lock_that_a_killed_process_left_does_not_delay(tmp_path):
    """Optuna's own lock is a link, which it takes for stale after half a minute."""
    tune.study(objective, num_trials=1, folder=tmp_path)
    os.symlink(tmp_path / "study.journal", tmp_path / "study.journal.lock")
    begin = time.monotonic()
    tune.study(objective, num_trials=2, folder=tmp_path, resume=True)
    assert time.monotonic() - begin < 10


def test_a_journal_that_is_damaged_in_its_midst_is_a_typed_error(tmp_path):
    tune.study(objective, num_trials=2, folder=tmp_path)
    path = tmp_path / "study.journal"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2][:9] + b"\n", *lines[3:]]))
    with pytest.raises(FileFormatError, match=r"study\.journal"):
        tune.study(objective, num_trials=3, folder=tmp_path, resume=True)


def test_many_trials_have_seeds_that_numpy_takes(tmp_path):
    """1,000,003 times the number of a trial exceeds 2³² after 4294 of them."""
    found = tune.study(objective, num_trials=2, seed=2**32 - 1)
    assert len(found.trials) == 2


# Results of other work ------------------------------------------------------------------------------------------------


def test_job_files_without_a_purpose_are_not_used(tmp_path):
    tune.grid(fit, {"width": [1, 2]}, folder=tmp_path)
    (tmp_path / "purpose.json").unlink()
    for resume in (False, True):
        with pytest.raises(OtherWorkError, match=r"purpose\.json"):
            tune.grid(fit, {"width": [1, 2]}, folder=tmp_path, resume=resume)


def test_a_journal_without_a_purpose_is_not_used(tmp_path):
    tune.study(objective, num_trials=1, folder=tmp_path)
    (tmp_path / "purpose.json").unlink()
    with pytest.raises(OtherWorkError, match=r"purpose\.json"):
        tune.study(objective, num_trials=2, folder=tmp_path, resume=True)


def test_job_files_of_another_tuning_are_not_used(tmp_path):
    """Copied from another folder: the same settings, but other data."""
    for name in ("a", "b"):
        tune.grid(fit, {"width": [1, 2]}, folder=tmp_path / name, purpose={"data": name})
    for path in (tmp_path / "a" / "jobs").iterdir():
        (tmp_path / "b" / "jobs" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(OtherWorkError, match="purpose"):
        tune.grid(fit, {"width": [1, 2]}, folder=tmp_path / "b", purpose={"data": "b"}, resume=True)


@pytest.mark.parametrize("name", ["purpose", "settings", "repeat"])
def test_a_job_file_that_says_something_else_is_not_used(name, tmp_path):
    tune.grid(fit, {"width": [1]}, folder=tmp_path)
    (path,) = (tmp_path / "jobs").iterdir()
    state = json.loads(path.read_text())
    for changed in ({**state, name: "other"}, {key: value for key, value in state.items() if key != name}):
        path.write_text(json.dumps(changed))
        with pytest.raises(OtherWorkError, match=name):
            tune.grid(fit, {"width": [1]}, folder=tmp_path, resume=True)


# One process at a time, and what it leaves ----------------------------------------------------------------------------


def test_a_folder_is_claimed_by_one(tmp_path):
    with claimed(tmp_path), pytest.raises(InputError, match="out"), claimed(tmp_path):
        pass
    with claimed(tmp_path):  # free again
        pass


def old(path: Path) -> Path:
    path.write_bytes(b"half")
    os.utime(path, (time.time() - 60,) * 2)
    return path


def test_temporary_files_of_killed_processes_are_removed(tmp_path):
    (tmp_path / "jobs").mkdir()
    stale = {old(tmp_path / ".dnn2gp-0a.json"), old(tmp_path / "jobs" / ".dnn2gp-0b.json")}
    kept = {old(tmp_path / name) for name in ("jobs.json", ".other", "dnn2gp-0a.json")}
    fresh = tmp_path / ".dnn2gp-0c.json"
    fresh.write_bytes(b"half")
    with old(tmp_path / ".dnn2gp-0d.json").open("rb+") as file:  # its writer is alive
        assert set(remove_stale(tmp_path)) == stale
        kept.add(Path(file.name))
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == kept | {fresh}


@pytest.mark.parametrize("way", ["grid", "study"])
def test_a_tuning_removes_them_at_its_start(way, tmp_path):
    stale = old(tmp_path / ".dnn2gp-0a.json")
    if way == "grid":
        tune.grid(fit, {"width": [1]}, folder=tmp_path)
    else:
        tune.study(objective, num_trials=1, folder=tmp_path)
    assert not stale.exists()


# Workers --------------------------------------------------------------------------------------------------------------


def test_a_process_that_was_killed_but_not_waited_for_is_gone():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        known = ProcessId(ProcessId.own().host, process.pid, psutil.Process(process.pid).create_time())
        assert not known.gone
        process.send_signal(signal.SIGKILL)
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert known.gone
    assert known.gone
    assert not ProcessId("elsewhere", 1, 0.0).gone
    assert ProcessId(ProcessId.own().host, os.getpid(), 0.0).gone  # an earlier process with this number
    assert not ProcessId.own().gone


_SLEEPS = """
import sys, time
from dnn2gp import tune
def fit(width, repeat):
    time.sleep(60)
    return 1.0
def objective(trial):
    time.sleep(60)
    return 1.0
if sys.argv[1] == "grid":
    tune.grid(fit, {"width": [1, 2]}, num_jobs=3)
else:
    tune.study(objective, num_trials=2, num_jobs=2, folder=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("way", ["grid", "study"])
def test_workers_end_after_their_parent_is_killed(way, tmp_path):
    """A worker that never had a job is among those of the grid."""
    command = [sys.executable, "-c", _SLEEPS, way, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        deadline, workers = time.monotonic() + 60, []
        while time.monotonic() < deadline and not _at_work(workers):
            time.sleep(0.2)
            workers = psutil.Process(process.pid).children(recursive=True)
        assert _at_work(workers)
        time.sleep(1)
        process.kill()
    _, alive = psutil.wait_procs(workers, timeout=15)
    for worker in alive:
        worker.kill()
    assert not alive


def _at_work(workers):
    """Two of them have started the thread that watches the parent, by now with torch loaded."""
    return sum(worker.num_threads() > 1 and worker.memory_info().rss > 1e8 for worker in workers) >= 2
