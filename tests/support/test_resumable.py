"""Steps that are kept in a folder: read again in the same order, nested, and only where all processes have them."""

from __future__ import annotations

import pytest
import torch

from dnn2gp.support.errors import MemoryBudgetError
from dnn2gp.support.processes import Alone
from dnn2gp.support.resumable import remembered, remembered_text, resumable


class StoppedError(Exception):
    pass


class Others(Alone):
    """Two processes, of which the other one has completed no step."""

    size = 2

    def smallest(self, own):
        return 0.0


def numbers(value, log, name):
    log.append(name)
    return {"numbers": torch.tensor([value], dtype=torch.float64)}


def work(log, stop_at=None):
    """Two steps, the second of which has two inner ones, and a third."""

    def step(name, value):
        if name == stop_at:
            raise StoppedError
        return remembered(name, lambda: numbers(value, log, name))["numbers"].item()

    def outer():
        log.append("outer")
        return {"sum": torch.tensor(step("inner", 2.0) + step("inner2", 3.0))}

    return step("first", 1.0) + remembered("outer", outer)["sum"].item() + step("last", 4.0)


def interrupted(folder, stop_at, **settings):
    log = []
    with pytest.raises(StoppedError), resumable(folder, lambda: {"kind": "a"}, 10**9, **settings):
        work(log, stop_at)
    return log


def completed(folder, **settings):
    log = []
    with resumable(folder, lambda: {"kind": "a"}, 10**9, **settings):
        return work(log), log


def test_completed_steps_are_not_taken_again(tmp_path):
    assert interrupted(tmp_path, "inner2") == ["first", "outer", "inner"]
    assert interrupted(tmp_path, "last") == ["outer", "inner2"]
    assert sorted(path.stem for path in tmp_path.glob("*.safetensors")) == ["0000-first", "0001-outer"]
    assert completed(tmp_path) == (10.0, ["last"])
    assert completed(tmp_path) == (10.0, ["first", "outer", "inner", "inner2", "last"])


def test_without_a_folder_nothing_is_kept():
    assert completed(None) == (10.0, ["first", "outer", "inner", "inner2", "last"])
    assert remembered_text("text", lambda: "δ = 1") == "δ = 1"


def text(folder, words):
    found = remembered_text("text", lambda: words)
    if not (folder / "0000-text.safetensors").exists():
        raise AssertionError(found)
    raise StoppedError(found)


@pytest.mark.parametrize("words", ["δ = 1", ""])
def test_a_text_is_kept(words, tmp_path):
    for now in (words, "other"):
        with pytest.raises(StoppedError, match=f"^{words}$"), resumable(tmp_path, dict, 10**9):
            text(tmp_path, now)


def test_several_processes_take_a_step_together(tmp_path):
    """A step that another process has not completed is taken again; each process has a folder of its own."""
    assert interrupted(tmp_path, "last", team=Others()) == ["first", "outer", "inner", "inner2"]
    assert (tmp_path / "process-0" / "0000-first.safetensors").exists()
    assert completed(tmp_path, team=Others())[1] == ["first", "outer", "inner", "inner2", "last"]


def test_a_step_that_does_not_fit_is_not_read(tmp_path):
    interrupted(tmp_path, "last")
    with pytest.raises(MemoryBudgetError), resumable(tmp_path, lambda: {"kind": "a"}, 10):
        work([])
