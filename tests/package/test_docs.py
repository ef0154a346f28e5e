"""The documentation: its Python runs, its links resolve, and the names that it maps the theory to exist."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
MAP = ROOT / "docs" / "theory-to-code.md"

RUNNER = Path(__file__).with_name("document.py")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[tuple[int, str]]:
    """(lines before it, source) of each ```python block."""
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as they are usually made: lower case, no punctuation, dashes."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def resolve(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute or field reached from the longest module in front of it."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            target: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return _reach(target, parts[length:])
    return False


def _reach(target: object, names: list[str]) -> bool:
    for position, name in enumerate(names):
        if dataclasses.is_dataclass(target) and name in {field.name for field in dataclasses.fields(target)}:
            return position == len(names) - 1
        if not hasattr(target, name):
            return False
        target = getattr(target, name)
    return True


def code_names(path: Path) -> list[str]:
    """The names in backticks that begin with the package, or with one of its public names and a dot."""
    import dnn2gp

    heads = "|".join(["dnn2gp", *dnn2gp.__all__])
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.S | re.M))
    dotted = [span for span in spans if re.fullmatch(rf"(?:{heads})(?:\.\w+)+", span)]
    return sorted({name if name.startswith("dnn2gp.") else f"dnn2gp.{name}" for name in dotted})


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in DOCUMENTS if blocks(path.read_text("utf-8"))], ids=relative)
def test_python_runs(path: Path, tmp_path: Path) -> None:
    """All blocks in one namespace; a failure is reported at its line of the document.

    In a process of its own: documents register likelihoods and structures, which other tests must not see.
    """
    source = tmp_path / "blocks.json"
    source.write_text(json.dumps(blocks(path.read_text("utf-8"))))
    result = forked.run([RUNNER, relative(path), source], cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    if path.name == "README.md":
        assert "Warning" not in result.stderr, result.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_links_resolve(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        if re.match(r"https?:", link):
            continue
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(link)
    assert not broken, broken


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.name != "CHANGELOG.md"], ids=relative)
def test_names_exist(path: Path) -> None:
    """Of what there is now; the changelog also names what a release had."""
    missing = [name for name in code_names(path) if not resolve(name)]
    assert not missing, missing


def test_the_map_names_much_and_its_tests_exist() -> None:
    assert len(code_names(MAP)) > 30
    tests = set(re.findall(r"`(tests/[\w/]+\.py)`", MAP.read_text("utf-8")))
    missing = sorted(test for test in tests if not (ROOT / test).is_file())
    assert not missing, missing


def test_the_map_has_every_equation_of_the_main_text() -> None:
    numbers = {int(number) for number in re.findall(r"\((\d+)\)", MAP.read_text("utf-8"))}
    assert set(range(1, 15)) <= numbers


# The checks themselves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["dnn2gp.nothing", "dnn2gp.Evidence.nothing", "dnn2gp.Evidence.laplace.nothing", "x.y"]
)
def test_missing_names_are_seen(name: str) -> None:
    assert not resolve(name)


@pytest.mark.parametrize(
    "name", ["dnn2gp.convert", "dnn2gp.weights.Expansion.root", "dnn2gp.features.feature_map.FeatureMap.jvp"]
)
def test_present_names_are_found(name: str) -> None:
    assert resolve(name)


def test_blocks_keep_their_lines() -> None:
    text = "a\n```python\nx = 1\n```\n```\nno\n```\n```python\ny = x\n```\n"
    assert blocks(text) == [(2, "x = 1\n"), (8, "y = x\n")]
