"""Every example runs with --smoke, writes what it says, and nothing else."""

from __future__ import annotations

from pathlib import Path

import forked
import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
PNG = b"\x89PNG\r\n\x1a\n"


def run(script: Path, folder: Path, *arguments: str) -> str:
    environment = {"MPLBACKEND": "Agg", "MPLCONFIGDIR": str(folder.parent)}
    return forked.run([script, "--smoke", *arguments], cwd=folder, environment=environment).stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_smoke(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    if "--output" not in script.read_text(encoding="utf-8"):  # it prints only
        assert run(script, folder)
        assert not list(folder.iterdir())
        return
    target = folder / ("own.safetensors" if "own" in script.stem else "picture.png")
    assert run(script, folder, "--output", target.name)
    assert [path.name for path in folder.iterdir()] == [target.name]
    if target.suffix == ".png":
        assert target.read_bytes().startswith(PNG)


def test_all_are_found() -> None:
    assert {path.stem for path in EXAMPLES} >= {"regression_1d", "classification_moons", "bring_your_own_network"}
