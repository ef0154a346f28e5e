"""convert(..., checkpoint=): kill -9 and the same call give the result of a conversion that was never interrupted."""

from __future__ import annotations

import json
import shutil
import time
from importlib import import_module
from pathlib import Path

import forked
import pytest
import torch
from gp.killed_conversion import answers, converted
from torch import nn

from dnn2gp import CategoricalLikelihood, Iterative
from dnn2gp.gp.checkpoint import described
from dnn2gp.inference import NetworkOutput
from dnn2gp.inference.iterative.samples import Samples
from dnn2gp.support.errors import FileFormatError, InputError, OtherWorkError
from dnn2gp.support.folders import claimed

MODE = import_module("dnn2gp.inference.linearised_mode")
SCRIPT = Path(__file__).with_name("killed_conversion.py")


def steps(folder):
    return sorted(path.name for path in folder.glob("*.safetensors"))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


class StoppedError(Exception):
    pass


def interrupted(monkeypatch, owner, name, kind, folder, after=0, **changes):
    """A conversion that ends with an error in a call of a function."""
    plain, calls = getattr(owner, name), []

    def call(*args, **kwargs):
        calls.append(None)
        if len(calls) > after:
            raise StoppedError
        return plain(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, call)
        with pytest.raises(StoppedError):
            converted(kind, folder, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "enough"),
    [("classifier", lambda names: any("step" in name for name in names)), ("regression", lambda names: len(names) > 4)],
)
def test_a_killed_conversion_goes_on(kind, enough, tmp_path):
    """The same answers, bit for bit, with fewer passes over the data than from the start; then the folder is empty."""
    folder, whole, resumed = tmp_path / "steps", tmp_path / "whole.pt", tmp_path / "resumed.pt"
    environment = {"OMP_NUM_THREADS": "1"}
    forked.run([SCRIPT, kind, "", whole, 0], environment=environment, checked=False)
    process = forked.Process([SCRIPT, kind, folder, resumed, 0.005], environment=environment, checked=False)
    deadline = time.time() + 60
    while not enough(steps(folder)):
        assert time.time() < deadline
        assert process.running()
        time.sleep(0.005)
    process.kill()
    assert not resumed.exists()
    assert steps(folder)
    forked.run([SCRIPT, kind, folder, resumed, 0], environment=environment, checked=False)
    (all_passes, expected), (passes, found) = torch.load(whole), torch.load(resumed)
    assert_same(found, expected)
    assert passes < all_passes
    assert [path.name for path in folder.iterdir()] == [".dnn2gp.lock"]


@pytest.mark.parametrize("kind", ["classifier", pytest.param("at the mode", marks=pytest.mark.slow)])
def test_every_kind_of_step_is_kept(kind, tmp_path, monkeypatch):
    """Ended in the search for the mode, and between two batches of samples, several times one after another."""
    expected = answers(converted(kind, None))
    interrupted(monkeypatch, MODE, "line_minimum", kind, tmp_path, after=1)
    names = steps(tmp_path)
    assert any("basis" in name for name in names)
    assert any("mode+" in name and "step" in name for name in names)
    interrupted(monkeypatch, Samples, "draw", kind, tmp_path, after=1)
    names = steps(tmp_path)
    assert any(("samples" if kind == "classifier" else "evidence") in name for name in names)
    assert not any("mode+" in name for name in names)  # the search has ended
    assert_same(answers(converted(kind, tmp_path)), expected)


def test_a_finished_conversion_with_a_checkpoint_is_that_without(tmp_path, expected):
    assert_same(answers(converted("classifier", tmp_path / "new" / "folder")), expected)


@pytest.fixture(scope="module")
def expected():
    """The answers of a conversion without a checkpoint."""
    return answers(converted("classifier", None))


@pytest.fixture(scope="module")
def _stopped(tmp_path_factory):
    """The folder of a conversion that ended before it had drawn samples."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, Samples, "draw", "classifier", folder)
    return folder


@pytest.fixture
def stopped(_stopped, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(_stopped, tmp_path / "steps"))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"seed": 1}, "network"),
        ({"inference": Iterative(rank=25, samples=24, tolerance=1e-6)}, "inference"),
        ({"prior_precision": 2.0}, "prior_precision"),
        ({"mean": NetworkOutput()}, "mean"),
        ({"subset": "last layer"}, "weights with a posterior"),
    ],
)
def test_a_folder_of_other_work_is_refused_by_name(changes, name, stopped):
    before = steps(stopped)
    with pytest.raises(OtherWorkError, match=rf"different: {name};"):
        converted("classifier", stopped, **changes)
    assert steps(stopped) == before


def test_other_data_and_likelihoods_are_other_work(stopped):
    with pytest.raises(OtherWorkError, match="targets, likelihood"):
        converted("regression", stopped)
    purpose = json.loads((stopped / "checkpoint.json").read_text())
    assert purpose["inputs"].startswith("sha256 ")
    (stopped / "checkpoint.json").write_text(json.dumps({**purpose, "dnn2gp": "0.0"}))
    with pytest.raises(OtherWorkError, match="different: dnn2gp"):
        converted("classifier", stopped)


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OtherWorkError, match=r"notes\.txt"):
        converted("classifier", tmp_path)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["notes.txt"]


def test_a_folder_in_which_another_process_works_is_refused(tmp_path):
    with claimed(tmp_path), pytest.raises(InputError, match="checkpoint"):
        converted("classifier", tmp_path)


def test_a_damaged_step_is_found(stopped, expected):
    path = stopped / steps(stopped)[1]
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=path.name):
        converted("classifier", stopped)
    path.unlink()
    assert_same(answers(converted("classifier", stopped)), expected)


def test_steps_of_another_order_are_computed_again(stopped, expected):
    """A file under the name of another step is not used."""
    first, second = [stopped / name for name in steps(stopped) if "basis" in name][:2]
    second.write_bytes(first.read_bytes())
    assert_same(answers(converted("classifier", stopped)), expected)


def test_different_values_are_described_differently():
    values = [
        1.0,
        2.0,
        None,
        "1.0",
        torch.ones(2),
        torch.ones(2, dtype=torch.float64),
        torch.zeros(2),
        torch.ones(1, 2),
    ]
    values += [
        {"a": 1.0},
        {"b": 1.0},
        Iterative(),
        Iterative(seed=1),
        CategoricalLikelihood,
        nn.Linear,
        NetworkOutput(),
    ]
    assert len({described(value) for value in values}) == len(values)
    assert described(torch.ones(2)) == described(torch.ones(2).clone())
