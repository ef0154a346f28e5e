"""Bars are there inside `show_progress` alone, and gone when the work is."""

from __future__ import annotations

import io
import sys
import time

import pytest
from rich.console import Console

from dnn2gp.support import progress
from dnn2gp.support.progress import bar, show_progress, track, waiting


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_waiting_moves_and_ends(console: Console) -> None:
    with show_progress(console=console):
        with waiting("downloading digits"):
            pass
        before = shown(console).count("downloading digits")
        with bar("curve", 3) as advance:
            advance("δ = 1")
    assert before > 0
    assert shown(console).count("downloading digits") == before
    assert "curve" in shown(console)


def test_a_bar_goes_with_its_error(console: Console) -> None:
    with show_progress(console=console):
        with pytest.raises(OSError, match="cable"), waiting("downloading"):
            raise OSError("cable")
        before = shown(console).count("downloading")
        assert list(track([1, 2, 3], "counting")) == [1, 2, 3]
    assert shown(console).count("downloading") == before
    assert "counting" in shown(console)


def test_lines_where_no_bar_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then, one for all that is under way; none after the end."""
    monkeypatch.setattr(progress, "_EVERY", 0.05)
    file, line = io.StringIO(), "    … curve: δ = 1 50 %; downloading [a]\n"
    with show_progress(console=Console(file=file)), bar("curve", 4, done=1) as advance, waiting("downloading [a]"):
        advance("δ = 1")
        end = time.monotonic() + 20
        while line not in file.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    before = file.getvalue()
    assert line in before
    time.sleep(0.2)
    assert file.getvalue() == before


def test_lines_without_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_EVERY", 0.02)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    printed = ""
    with show_progress(), bar("curve", 4, done=1):
        end = time.monotonic() + 20
        while not printed and time.monotonic() < end:
            time.sleep(0.01)
            printed = capsys.readouterr().err
    assert printed.startswith("    … curve 25 %\n")


def test_silent_outside(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("downloading"), bar("curve", 2) as advance:
        advance("δ")
    assert list(track(iter([1, 2]), "counting")) == [1, 2]
    assert capsys.readouterr() == ("", "")
