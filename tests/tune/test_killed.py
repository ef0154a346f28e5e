"""kill -9 on a running grid and a running study: resumed, they end as if nothing had happened."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import forked
import pytest

from dnn2gp.evidence.tuning_result import TuningResult

SCRIPT = Path(__file__).with_name("killed.py")


def command(kind, folder, seconds, resume=False):
    return [SCRIPT, kind, folder, seconds, "resume" if resume else "new"]


def marks(folder):
    """Starts of each job."""
    return Counter(path.name.rsplit("-", 1)[0] for path in (folder / "marks").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grid", "study"])
def test_a_killed_tuning_goes_on_where_it_stopped(kind, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    forked.run(command(kind, whole, 0))
    process = forked.Process(command(kind, killed, 0.3))
    deadline = time.time() + 100
    while not (killed / "marks").exists() or len(list((killed / "marks").iterdir())) < 4:
        assert time.time() < deadline
        assert process.running()
        time.sleep(0.02)
    process.kill()
    started = marks(killed)
    forked.run(command(kind, killed, 0, resume=True))
    results = [TuningResult.load(folder / "result.json") for folder in (whole, killed)]
    assert results[0] == results[1]
    # Three of ten were finished; only the fourth, that was killed in its midst, was begun a second time.
    assert sum(marks(whole).values()) == 10
    assert sum(started.values()) == 4
    assert sum(marks(killed).values()) == 11
