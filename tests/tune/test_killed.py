"""kill -9 on a running grid and a running study: resumed, they end as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from dnn2gp.evidence.tuning_result import TuningResult

SCRIPT = Path(__file__).with_name("killed.py")


def command(kind, folder, seconds, resume=False):
    return [sys.executable, str(SCRIPT), kind, str(folder), str(seconds), "resume" if resume else "new"]


def marks(folder):
    """Starts of each job."""
    return Counter(path.name.rsplit("-", 1)[0] for path in (folder / "marks").iterdir())


@pytest.mark.parametrize("kind", ["grid", "study"])
def test_a_killed_tuning_goes_on_where_it_stopped(kind, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(kind, whole, 0), check=True, timeout=120)
    process = subprocess.Popen(command(kind, killed, 0.3))
    deadline = time.time() + 100
    while not (killed / "marks").exists() or len(list((killed / "marks").iterdir())) < 4:
        assert time.time() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    started = marks(killed)
    subprocess.run(command(kind, killed, 0, resume=True), check=True, timeout=120)
    results = [TuningResult.load(folder / "result.json") for folder in (whole, killed)]
    assert results[0] == results[1]
    # Three of ten were finished; only the fourth, that was killed in its midst, was begun a second time.
    assert sum(marks(whole).values()) == 10
    assert sum(started.values()) == 4
    assert sum(marks(killed).values()) == 11
