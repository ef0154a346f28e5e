"""Processes that start in an instant: forks of one that has loaded torch and dnn2gp and has computed nothing yet.

`run(["script.py", "--option"])` does what `python script.py --option` does, less the seconds that its imports take.
A process of its own, so that it may be killed, may register things, and has a memory to be measured.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import checked_calls

TESTS = Path(__file__).parent
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["forked_preload"])


class Process:
    """A script, or with -m a module, that runs in the background: `wait`, `kill` and what it printed."""

    def __init__(
        self,
        command: Sequence[object],
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        checked: bool = True,
    ) -> None:
        self.command = [str(word) for word in command]
        self._printed = [Path(tempfile.mkstemp(prefix="printed-")[1]) for _ in range(2)]
        values = {**os.environ, **(environment or {})}
        self._process = _context.Process(
            target=_main, args=(self.command, str(cwd or Path.cwd()), values, list(map(str, self._printed)), checked)
        )
        with _importable():
            self._process.start()

    def running(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> Finished:
        """As kill -9 does."""
        self._process.kill()
        return self.wait()

    def wait(self, seconds: float = 300.0) -> Finished:
        self._process.join(seconds)
        if self._process.exitcode is None:
            self.kill()
            raise TimeoutError(f"{self.command} ran for more than {seconds} s")
        printed = [path.read_text("utf-8") for path in self._printed]
        for path in self._printed:
            path.unlink()
        return Finished(self._process.exitcode, *printed)


class Finished:
    """How a process ended, and what it printed."""

    def __init__(self, returncode: int, stdout: str, stderr: str) -> None:
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


def run(
    command: Sequence[object],
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    check: bool = True,
    checked: bool = True,
) -> Finished:
    """Run a command to its end, which has to be a good one unless `check` is False.

    `checked`: with the shapes and types of the first calls checked, as in every other test.
    """
    found = Process(command, cwd, environment, checked).wait()
    assert not check or found.returncode == 0, found.stderr
    return found


def _main(command: list[str], cwd: str, environment: dict[str, str], printed: list[str], checked: bool) -> None:
    for stream, path in enumerate(printed, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
    assert "dnn2gp" in sys.modules, "the fork server has not loaded dnn2gp"
    if not checked:
        checked_calls.FIRST = 0
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path.insert(0, str(Path(command[0]).parent))
        runpy.run_path(command[0], run_name="__main__")


@contextlib.contextmanager
def _importable():
    """The server of the forks finds what is imported in tests: it is started with their path."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in (str(TESTS), *sys.path) if path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
