"""The version, the dependencies and their pins agree, and no file names a machine or a registry."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORBIDDEN = {"torchvision", "ivon-opt", "curvlinops-for-pytorch", "backpack-for-pytorch", "laplace-torch"}
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def package(requirement: str) -> str:
    """'Scikit_Learn[extra]>=1; marker' -> 'scikit-learn'."""
    name = re.match(r"[\w.-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def direct_dependencies() -> set[str]:
    extras = PROJECT["optional-dependencies"].values()
    return {package(line) for group in (PROJECT["dependencies"], *extras) for line in group} - {"dnn2gp"}


def pins(python: str) -> dict[str, str]:
    """The pins of constraints.txt that hold on this version of Python, by package."""
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        requirement = line.split("#")[0].strip()
        if not requirement:
            continue
        requirement, _, marker = requirement.partition(";")
        if marker and not holds(marker, python):
            continue
        assert "==" in requirement, f"constraints.txt must pin with ==: {line!r}"
        assert package(requirement) not in found, f"two pins of {package(requirement)} on Python {python}"
        found[package(requirement)] = requirement.partition("==")[2].strip()
    return found


def holds(marker: str, python: str) -> bool:
    match = re.fullmatch(r'\s*python_version (>=|<) "(\d+)\.(\d+)"\s*', marker)
    assert match, f'a marker other than python_version >= or < "x.y": {marker!r}'
    here, bound = tuple(map(int, python.split("."))), (int(match[2]), int(match[3]))
    return here >= bound if match[1] == ">=" else here < bound


def test_version() -> None:
    import dnn2gp

    assert dnn2gp.__version__ == metadata.version("dnn2gp") == PROJECT["version"]


def test_citation_has_the_version() -> None:
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize("python", PYTHONS)
def test_every_direct_dependency_is_pinned(python: str) -> None:
    assert pins(python).keys() == direct_dependencies()


def test_torch_is_pinned() -> None:
    assert {pins(python)["torch"] for python in PYTHONS} == {"2.13.0"}


def test_forbidden_packages_are_absent() -> None:
    names = direct_dependencies() | pins("3.10").keys() | pins("3.13").keys()
    assert not names & FORBIDDEN
    assert not [name for name in names if re.search("torchvision|ivon|curvlinops|backpack|laplace", name)]


def test_typed_marker_is_shipped() -> None:
    assert (ROOT / "src" / "dnn2gp" / "py.typed").is_file()


def test_ci_script_is_executable() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("file", [".ci/run", ".github/workflows/ci.yml"])
def test_ci_runs_targets_that_exist(file: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / file).read_text()
    listed = re.search(r"target: \[(.*)\]", text)
    called = {*re.findall(r"make ([a-z-]+)", text), *(listed[1].split(", ") if listed else ())}
    assert called == {"test", "test-browser", "test-compat", "lint"}
    assert called <= targets


def test_ci_tests_the_versions_of_python_that_are_supported() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "python: [" + ", ".join(f'"{python}"' for python in PYTHONS) + "]" in text
    assert [f"Programming Language :: Python :: {python}" for python in PYTHONS] == [
        line for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.", line)
    ]


def test_pre_commit_uses_the_pinned_ruff() -> None:
    assert f"rev: v{pins(PYTHONS[0])['ruff']} " in (ROOT / ".pre-commit-config.yaml").read_text()


MACHINE = re.compile(r"(?<![\w./~-])/(?:work|root|opt|home|Users)(?![\w-])")
REGISTRY = re.compile(r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|registry\.npmjs|(?:extra-)?index-url", re.I)
WRITTEN = ("src", "docs", "examples", "benchmarks", ".ci")
TEXT = {".py", ".md", ".rst", ".txt", ".toml", ".cff", ".ipynb", ".json", ".yml", ".yaml", ".cfg", ""}


def written_files() -> list[Path]:
    files = [path for folder in WRITTEN for path in sorted((ROOT / folder).rglob("*"))]
    files += sorted(ROOT.iterdir())
    passed_over = {"__pycache__", ".git"}  # .git is a file in a worktree, which names a folder of the machine
    return [path for path in files if path.is_file() and path.suffix in TEXT and not passed_over & set(path.parts)]


@pytest.mark.parametrize("pattern", [MACHINE, REGISTRY], ids=["path", "registry"])
def test_no_machine_paths_or_registries(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in written_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("line", ["see /work/main", "cd /root", "'/home/me/x'", "(/opt/wheels)"])
def test_machine_paths_are_seen(line: str) -> None:
    assert MACHINE.search(line)


@pytest.mark.parametrize("line", ["a/work", "../work", "square /roots", "y = x/root", "~/work"])
def test_other_slashes_are_not(line: str) -> None:
    assert not MACHINE.search(line)
