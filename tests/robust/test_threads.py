"""Many threads on one module and one GP: every result as in one thread, and the module as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# 200 calls per thread take several minutes.
CALLS = os.environ.get("DNN2GP_THREAD_CALLS", "2")


@pytest.mark.slow
def test_predict_and_convert_from_many_threads():
    program = [sys.executable, str(Path(__file__).with_name("threads.py")), CALLS]
    finished = subprocess.run(program, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == []
