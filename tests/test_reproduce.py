"""`dnn2gp reproduce`: all figures at smoke size on made-up data, resumed, cut off, and with what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from made_data import make_data
from typer.testing import CliRunner

from dnn2gp.cli import app
from dnn2gp.reproduce import FIGURES

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.errors.NotAMinimumWarning", "ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def _made_data(data, monkeypatch, tmp_path):
    monkeypatch.setenv("DNN2GP_DATA", str(data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def reproduce(*words: str):
    return CliRunner().invoke(app, ["reproduce", *words])


@pytest.mark.slow
def test_all_figures_and_their_report(tmp_path):
    """Every picture as PNG and PDF, every result as npz and JSON, one report; --resume runs nothing again."""
    out = tmp_path / "out"
    found = reproduce("all", "--preset", "smoke", "--out", str(out))
    assert found.exit_code == 0, found.output
    assert sorted(path.stem for path in (out / "results").glob("*.npz")) == sorted(FIGURES)
    for name in FIGURES:
        pictures = list((out / "pictures").glob(f"{name}*.png"))
        assert pictures
        assert all(path.with_suffix(".pdf").exists() for path in pictures)
        known = json.loads((out / "results" / f"{name}.json").read_text())
        assert known["claims"]
        assert known["config"]
        assert set(known["versions"]) >= {"dnn2gp", "torch"}
        assert name in found.output
    page = (out / "report.html").read_text()
    assert all(kind.title.split(":")[0] in page for kind in FIGURES.values())
    assert "http://" not in page.split("<body")[0].replace("http://www.w3.org", "")
    assert not any((out / "work").iterdir()) if (out / "work").exists() else True

    before = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    again = reproduce("all", "--preset", "smoke", "--out", str(out), "--resume")
    assert again.exit_code == 0
    assert again.output.count("from the earlier run") == len(FIGURES)
    assert {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()} == before


def test_one_figure_twice_gives_the_same_files(tmp_path):
    for name in ("a", "b"):
        assert reproduce("moons", "--preset", "smoke", "--out", str(tmp_path / name)).exit_code == 0
    for path in ("results/moons.npz", "pictures/moons.png", "pictures/moons.pdf"):
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
    assert reproduce("moons", "--preset", "smoke", "--out", str(tmp_path / "a")).exit_code == 0  # anew, in its place
    assert (tmp_path / "a/results/moons.npz").read_bytes() == (tmp_path / "b/results/moons.npz").read_bytes()


def test_a_damaged_result_or_one_of_another_preset_is_made_anew(tmp_path):
    out = str(tmp_path)
    assert reproduce("two_d", "--preset", "smoke", "--out", out).exit_code == 0
    result = tmp_path / "results" / "two_d.npz"
    whole = result.read_bytes()
    result.write_bytes(whole[:100])
    found = reproduce("two_d", "--preset", "smoke", "--out", out, "--resume")
    assert found.exit_code == 0
    assert "earlier run" not in found.output
    assert result.read_bytes() == whole
    known = tmp_path / "results" / "two_d.json"
    known.write_text(known.read_text().replace('"width": 8', '"width": 9'))
    found = reproduce("two_d", "--preset", "smoke", "--out", out, "--resume")
    assert "earlier run" not in found.output
    assert result.read_bytes() == whole


def test_what_is_wrong_is_said(tmp_path, data, monkeypatch):
    found = reproduce("fig99", "--out", str(tmp_path))
    assert found.exit_code == 1
    assert "expected one of all, two_d, snelson" in found.output.replace("\n", " ")
    (tmp_path / "file").write_text("")
    found = reproduce("moons", "--preset", "smoke", "--out", str(tmp_path / "file" / "below"))
    assert found.exit_code == 1
    assert "Cannot make the folder" in found.output
    # Snelson's data are not there, and neither is a network: the other figure is made, and the run says what is missing
    monkeypatch.setenv("DNN2GP_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("dnn2gp.datasets.snelson._URL", (tmp_path / "none.zip").as_uri())
    found = reproduce("snelson", "moons", "--preset", "smoke", "--out", str(tmp_path / "out"))
    assert found.exit_code == 1
    words = found.output.replace("\n", " ")
    assert "Put snelson/train_inputs" in words
    assert "1 of the figures are not there: snelson" in words
    assert (tmp_path / "out" / "results" / "moons.npz").exists()
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same(tmp_path, data):
    """kill -9 in the middle of a training; --resume ends with the numbers of an uninterrupted run."""
    command = [sys.executable, "-m", "dnn2gp", "reproduce", "binary_mnist", "tune_wine", "--preset", "smoke", "--out"]
    environment = {**os.environ, "DNN2GP_DATA": str(data)}
    whole = subprocess.run([*command, str(tmp_path / "whole")], env=environment, check=True, capture_output=True)
    assert b"report" in whole.stdout
    cut = tmp_path / "cut"
    process = subprocess.Popen([*command, str(cut)], env=environment, stdout=subprocess.DEVNULL)
    _wait_for(lambda: any(cut.glob("work/tune_wine/*/*")) or (cut / "results/tune_wine.npz").exists(), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run([*command, str(cut), "--resume"], env=environment, check=True, capture_output=True)
    for name in ("binary_mnist", "tune_wine"):
        one, two = (np.load(tmp_path / folder / "results" / f"{name}.npz") for folder in ("whole", "cut"))
        assert one.files == two.files
        for key in one.files:
            np.testing.assert_array_equal(one[key], two[key])


def _wait_for(there, process: subprocess.Popen, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        if process.poll() is not None:
            return
        time.sleep(0.01)


def test_the_folder_of_a_figure_is_nobody_elses(tmp_path):
    """Without --resume only what belongs to the figure is removed."""
    (tmp_path / "weights" / "mnist").mkdir(parents=True)
    kept = tmp_path / "weights" / "mnist" / "kept"
    kept.write_text("")
    (tmp_path / "mine.txt").write_text("")
    assert reproduce("moons", "--preset", "smoke", "--out", str(tmp_path)).exit_code == 0
    assert kept.exists()
    assert (tmp_path / "mine.txt").exists()
    assert Path(tmp_path / "report.html").stat().st_size > 1000
