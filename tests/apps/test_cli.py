"""The command line: help, version, the demo, and what a user sees when something goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dnn2gp.apps.cli import app
from dnn2gp.apps.table_tuning import TableTuningConfig
from dnn2gp.paper.training import TrainConfig
from dnn2gp.support.errors import FileFormatError, InputError, MemoryBudgetError, NetworkError, NotPositiveDefiniteError


def invoke(*arguments: str):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})


def plain(text: str) -> str:
    """Without colours and box lines, in one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


def test_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output == f"dnn2gp {version('dnn2gp')}\n"


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_names_the_command_and_an_example(arguments: list[str]) -> None:
    text = plain(invoke(*arguments).output)
    assert "Example: dnn2gp demo --out results" in text
    assert "reproduce" in text


def test_help_of_the_demo() -> None:
    result = invoke("demo", "--help")
    assert result.exit_code == 0
    text = plain(result.output)
    for part in ("--out", "--seed", "--preset", "default", "smoke", "Example: dnn2gp demo --out results --seed 1"):
        assert part in text


def test_defaults_in_the_help_are_those_of_the_configuration() -> None:
    """Options that are None until a preset fills them say what it fills in."""
    options = ("epochs", "batch_size", "prior_precision", "temperature", "momentum", "num_samples", "repeats")
    values = {**vars(TrainConfig.preset("paper")), "repeats": TableTuningConfig.preset("default").repeats}
    shown = {name: plain(invoke(name, "--help").output) for name in ("train", "tune")}
    for name in options:
        text = shown["tune" if name == "repeats" else "train"]
        assert f"[default: {values[name]:g}]" in text.split(f"--{name.replace('_', '-')} ")[1].split(" --")[0], name
    rates = [replace(TrainConfig(), method=method).rate for method in ("vogn", "adam")]
    assert f"[default: {rates[0]}; adam: {rates[1]}]" in shown["train"]


def test_flags_take_no_value() -> None:
    for command, flags in {"tune": ("--impute", "--drop-constant", "--resume"), "train": ("--resume",)}.items():
        lines = [line.split() for line in invoke(command, "--help").output.split("Options:")[1].splitlines()]
        for flag in flags:
            (words,) = [words[1] for words in lines if words[:1] == [flag]]
            assert words[0].isupper(), "the first word of the description"
            assert not words.isupper(), "not the name of a value"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--preset", "huge"], "huge"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--seed", str(2**63)], "--seed"),
        (["tune", "--seed", str(2**63)], "--seed"),
        (["train", "--seed", str(2**63)], "--seed"),
        (["nothing"], "nothing"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in plain(result.stderr)


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_demo_runs(tmp_path: Path) -> None:
    result = invoke("demo", "--out", str(tmp_path / "out"), "--preset", "smoke", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert "log evidence" in result.output
    assert len(list((tmp_path / "out").iterdir())) == 5


def test_options_reach_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("dnn2gp.apps.demo.run", lambda config, console: seen.append(config))
    assert invoke("demo", "--out", str(tmp_path), "--preset", "smoke", "--seed", "3").exit_code == 0
    assert invoke("demo").exit_code == 0
    small, usual = seen
    assert (small.out, small.seed, small.num_train) == (tmp_path, 3, 150)
    assert (usual.out, usual.seed, usual.num_train) == (Path("dnn2gp-demo"), 0, 1200)


def test_an_out_that_cannot_be_written_is_said_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("dnn2gp.apps.demo.job.train", lambda *_: pytest.fail("trained"))
    result = invoke("demo", "--preset", "smoke", "--out", str(tmp_path / "file" / "out"))
    assert result.exit_code == 1
    assert "Error: Cannot write to the folder" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "kind", [InputError, NetworkError, NotPositiveDefiniteError, MemoryBudgetError, FileFormatError, OSError]
)
def test_known_errors_are_one_message(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise kind("what [went] wrong")

    monkeypatch.setattr("dnn2gp.apps.demo.run", fail)
    result = invoke("demo")
    assert result.exit_code == 1
    assert result.stderr == "Error: what [went] wrong\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("dnn2gp.apps.demo.run", fail)
    assert isinstance(invoke("demo").exception, ZeroDivisionError)


def test_an_interrupt_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dnn2gp.apps.demo.run", interrupt)
    result = invoke("demo")
    assert result.exit_code == 130
    assert result.stderr.startswith("Interrupted.")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_an_interrupt_while_a_picture_is_saved_leaves_whole_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    savefig, saved = Figure.savefig, []

    def interrupted(figure: Figure, place: Path) -> None:
        if saved:
            Path(place).write_bytes(b"half a picture")
            raise KeyboardInterrupt
        saved.append(place)
        savefig(figure, place)

    monkeypatch.setattr(Figure, "savefig", interrupted)
    result = invoke("demo", "--preset", "smoke", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert [path.name for path in tmp_path.iterdir()] == ["familiarity.png"]
    assert (tmp_path / "familiarity.png").read_bytes().endswith(b"IEND\xaeB`\x82")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_of_a_real_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", "from dnn2gp.__main__ import main; main()", "demo", "--out", str(out)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # even if it was ignored
    )
    try:
        deadline = time.monotonic() + 60
        while not out.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "Interrupted" in stderr
    assert "Traceback" not in stderr
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_ctrl_c_during_imports_is_short(module: str, tmp_path: Path) -> None:
    code = f"""
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv = ["dnn2gp", "demo"]
from dnn2gp.__main__ import main
main()
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 130
    assert result.stderr.startswith("Interrupted.")
    assert "Traceback" not in result.stderr


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, dnn2gp.apps.cli; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in result.stdout.split()}
    assert "typer" in loaded
    assert not loaded & {"torch", "matplotlib", "sklearn", "safetensors"}
