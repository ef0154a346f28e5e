"""python -m benchmarks.calibration: killed in the midst of its work, it continues and gives the same results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _command(out: Path, *more: str) -> list[str]:
    words = ["--only", "iris", "split 6"]
    return [sys.executable, "-m", "benchmarks.calibration", "--threads", "1", "--out", str(out), *words, *more]


def _results(path: Path) -> dict:
    rows = json.loads(path.read_text())
    return {name: {key: value for key, value in row.items() if key != "seconds"} for name, row in rows.items()}


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    subprocess.run(_command(whole), cwd=ROOT, env=environment, check=True, capture_output=True, timeout=300)
    process = subprocess.Popen(_command(parts), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 300
    while not parts.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = _results(parts)
    assert 0 < len(first) < len(_results(whole))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: begin -->\nold\n<!-- table: end -->\nafter\n")
    again = subprocess.run(
        _command(parts, "--page", str(page)), cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert _results(parts) == _results(whole)
    assert all(name not in again.stdout.split("|")[0] for name in first)  # what was finished is not measured again
    text = page.read_text()
    assert text.startswith("before\n<!-- table: begin -->\n| network |")
    assert text.endswith("<!-- table: end -->\nafter\n")
    assert "old" not in text
