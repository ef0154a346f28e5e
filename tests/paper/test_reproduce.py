"""`dnn2gp reproduce`: all figures at smoke size on made-up data, resumed, cut off, and with what is wrong."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import replace
from html import unescape

import forked
import numpy as np
import pytest
from made_data import make_data
from safetensors.numpy import load_file
from typer.testing import CliRunner

from dnn2gp.apps.cli import app
from dnn2gp.paper import figures
from dnn2gp.paper import reproduce as runner
from dnn2gp.paper.figure import Workspace
from dnn2gp.paper.figures import all_figures, wine
from dnn2gp.paper.reproduce import ReproduceConfig

FIGURES = all_figures()
pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning", "ignore::RuntimeWarning")


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
def test_all_figures_and_their_report(tmp_path, request):
    """Every picture as PNG and PDF, every result as npz and JSON, one report; --resume runs nothing again."""
    out = tmp_path / "out" / "smoke"
    found = reproduce("all", "--preset", "smoke", "--out", str(out.parent))
    assert found.exit_code == 0, found.output
    assert sorted(path.stem for path in (out / "results").glob("*.npz")) == sorted(FIGURES)
    for name in FIGURES:
        pictures = list((out / "pictures").glob(f"{name}*.png"))
        assert pictures
        assert all(path.with_suffix(".pdf").exists() for path in pictures)
        known = json.loads((out / "results" / f"{name}.json").read_text())
        assert known["claims"]
        assert all(claim["holds"] is None for claim in known["claims"])  # too little to judge
        assert not known["resumed"]
        assert known["config"]
        assert set(known["versions"]) >= {"dnn2gp", "torch"}
        assert name in found.output
    page = unescape((out / "report.html").read_text())
    titles = [f"<h2>{kind.title}</h2>" for kind in FIGURES.values()]
    assert [page.count(title) for title in titles] == [1] * len(FIGURES)
    assert "far too small to judge" in page
    assert not (out / "work").exists()

    before = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    request.getfixturevalue("blank_pictures")  # they are drawn anew
    again = reproduce("all", "--preset", "smoke", "--out", str(out.parent), "--resume")
    assert again.exit_code == 0
    assert again.output.count("from an earlier run") == len(FIGURES)
    assert {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()} == before


@pytest.mark.slow
def test_one_figure_twice_gives_the_same_files(tmp_path):
    for name in ("a", "b"):
        assert reproduce("moons", "--preset", "smoke", "--out", str(tmp_path / name)).exit_code == 0
    for path in ("smoke/results/moons.npz", "smoke/pictures/moons.png", "smoke/pictures/moons.pdf"):
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_a_damaged_result_is_made_anew_and_a_whole_one_is_never_lost(tmp_path):
    out = str(tmp_path)
    assert reproduce("two_d", "--preset", "smoke", "--out", out).exit_code == 0
    result = tmp_path / "smoke" / "results" / "two_d.npz"
    whole = result.read_bytes()
    found = reproduce("two_d", "--preset", "smoke", "--out", out)
    assert found.exit_code == 1
    assert "two_d.json already exists" in " ".join(found.output.split())
    assert result.read_bytes() == whole
    with np.load(result) as file:  # whole, but another one
        np.savez(result, **{**file, "labels": 1 - file["labels"]})
    found = reproduce("two_d", "--preset", "smoke", "--out", out, "--resume")
    assert found.exit_code == 0
    assert "earlier run" not in found.output
    assert result.read_bytes() == whole
    known = tmp_path / "smoke" / "results" / "two_d.json"
    known.write_text(known.read_text().replace('"width": 8', '"width": 9'))
    found = reproduce("two_d", "--preset", "smoke", "--out", out, "--resume")
    assert "earlier run" not in found.output
    assert result.read_bytes() == whole
    # claims are those of today, whatever was written
    known.write_text(known.read_text().replace("separates the two classes", "separates nothing"))
    found = reproduce("Two-D", "--preset", "smoke", "--out", out, "--resume")
    assert "earlier run" in found.output
    assert "separates nothing" not in (tmp_path / "smoke" / "report.html").read_text()
    assert "separates nothing" not in known.read_text()
    weights = load_file(tmp_path / "smoke" / "weights" / "two_d" / "networks.safetensors")
    assert weights["network"].shape == (33,)
    # another figure: the page has both
    assert reproduce("moons", "--preset", "smoke", "--out", out).exit_code == 0
    page = (tmp_path / "smoke" / "report.html").read_text()
    assert FIGURES["two_d"].title in page
    assert FIGURES["moons"].title in page


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_work_of_other_settings_is_made_anew(tmp_path):
    """What an older version left behind does not stand in the way."""
    out = tmp_path / "smoke"
    assert reproduce("wine", "--preset", "smoke", "--out", str(tmp_path)).exit_code == 0
    whole = (out / "results" / "wine.npz").read_bytes()
    (out / "results" / "wine.json").unlink()
    wine.curve(replace(wine.FIGURE.smoke, epochs=3), "prior_precision", Workspace(out / "work" / "wine"))
    found = reproduce("wine", "--preset", "smoke", "--out", str(tmp_path), "--resume")
    assert found.exit_code == 0, found.output
    assert (out / "results" / "wine.npz").read_bytes() == whole


def test_trainings_that_were_there(tmp_path):
    """Where its own training had begun, a figure's time is a part of it; the network of another figure is no such."""
    config = ReproduceConfig(("all",), "smoke", tmp_path, resume=True)

    def begun() -> dict[str, bool]:
        return {name: runner._has_begun_weights(config, FIGURES[name]) for name in ("mnist", "ood", "cifar", "moons")}

    assert not any(begun().values())
    (config.folder / "weights" / "mnist").mkdir(parents=True)
    assert begun() == {"mnist": True, "ood": True, "cifar": False, "moons": False}
    (config.folder / "results").mkdir()
    (config.folder / "results" / "mnist.json").write_text("{}")
    assert begun() == {"mnist": True, "ood": False, "cifar": False, "moons": False}


TOY = """
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from dnn2gp.paper.figure import FigureKind, Findings
from dnn2gp.plots.report.section import Claim


@dataclass(frozen=True)
class ToyConfig:
    size: int = 1000


FIGURE = FigureKind(
    name="toy",
    order=45,
    title="A toy",
    caption="Ones.",
    paper=ToyConfig(),
    smoke=ToyConfig(3),
    compute=lambda config, workspace: Findings({"ones": np.ones(config.size)}),
    claims=lambda arrays, config: (Claim("a sum", "3", str(arrays["ones"].sum()), None),),
    draw=lambda result: {"": Figure()},
)
"""


def test_a_new_figure_is_one_module(tmp_path, monkeypatch):
    """A module that appears in the package is listed at the place it states, computed, drawn and reported."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "toy.py").write_text(TOY)
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(folder)])
    try:
        names = list(all_figures())
        assert names[names.index("cifar") + 1] == "toy"
        assert names[names.index("toy") + 1] == "synthetic"
        found = reproduce("toy", "--preset", "smoke", "--out", str(tmp_path / "out"))
    finally:
        sys.modules.pop("dnn2gp.paper.figures.toy", None)
    assert found.exit_code == 0, found.output
    with np.load(tmp_path / "out" / "smoke" / "results" / "toy.npz") as arrays:
        np.testing.assert_array_equal(arrays["ones"], np.ones(3))
    assert (tmp_path / "out" / "smoke" / "pictures" / "toy.png").exists()
    assert "A toy" in (tmp_path / "out" / "smoke" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_a_bug_in_one_figure_leaves_the_others(tmp_path, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("dnn2gp.paper.figures.moons.plane_grid", broken)
    found = reproduce("moons", "width", "--preset", "smoke", "--out", str(tmp_path))
    assert found.exit_code == 1
    assert "ZeroDivisionError" in found.output
    page = (tmp_path / "smoke" / "report.html").read_text()
    assert "a bug" in page
    assert FIGURES["width"].title in page


@pytest.mark.usefixtures("blank_pictures")
def test_what_is_wrong_is_said(tmp_path, data, monkeypatch):
    found = reproduce("fig99", "--out", str(tmp_path))
    assert found.exit_code == 1
    assert "expected one of all, two_d, snelson" in " ".join(found.output.split())
    (tmp_path / "file").write_text("")
    found = reproduce("moons", "--preset", "smoke", "--out", str(tmp_path / "file" / "below"))
    assert found.exit_code == 1
    assert "Cannot create the folder" in found.output
    # Snelson's data are not there, and neither is a network: the other figure is made, and the run says what is missing
    monkeypatch.setenv("DNN2GP_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("dnn2gp.paper.datasets.snelson._URL", (tmp_path / "none.zip").as_uri())
    found = reproduce("snelson", "moons", "--preset", "smoke", "--out", str(tmp_path / "out"))
    assert found.exit_code == 1
    words = " ".join(found.output.split())
    assert "Put snelson/train_inputs" in words
    assert "These figures could not be made: snelson" in words
    assert (tmp_path / "out" / "smoke" / "results" / "moons.npz").exists()
    assert "Put snelson/train_inputs" in (tmp_path / "out" / "smoke" / "report.html").read_text()


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same(tmp_path, data):
    """kill -9 when the first values of a curve are there; --resume ends with the numbers of an uninterrupted run."""
    command = ["-m", "dnn2gp", "reproduce", "wine", "--preset", "smoke", "--out"]
    forked.run([*command, tmp_path / "whole"], checked=False)
    cut = tmp_path / "cut"
    process = forked.Process([*command, cut], checked=False)
    _wait_for(lambda: any(cut.glob("smoke/work/wine/prior_precision/*/*")), process)
    assert process.kill().returncode == -signal.SIGKILL
    assert not (cut / "smoke/results/wine.npz").exists()
    forked.run([*command, cut, "--resume"], checked=False)
    files = [tmp_path / folder / "smoke/results/wine.npz" for folder in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()
    resumed = [json.loads(path.with_suffix(".json").read_text())["resumed"] for path in files]
    assert resumed == [False, True]
    assert "since it was resumed" in (cut / "smoke/report.html").read_text()


def _wait_for(there, process: forked.Process, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        assert process.running()
        time.sleep(0.01)


@pytest.mark.usefixtures("blank_pictures")
def test_presets_and_other_files_are_left_alone(tmp_path):
    kept = [tmp_path / "paper" / "weights" / "mnist" / "kept", tmp_path / "mine.txt"]
    kept[0].parent.mkdir(parents=True)
    for path in kept:
        path.write_text("")
    assert reproduce("moons", "--preset", "smoke", "--out", str(tmp_path)).exit_code == 0
    assert all(path.exists() for path in kept)
