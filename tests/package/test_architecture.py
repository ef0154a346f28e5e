"""The import order of the package: the rooms in pyproject.toml, checked on the source without importing it.

`make lint` checks the same list with import-linter; this check needs no tool, and plots/ has a stricter rule of its
own. Imports inside functions and under TYPE_CHECKING count like any others.
"""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGE = "dnn2gp"
Graph = dict[str, set[str]]


def declared_layers() -> list[list[str]]:
    """The layers of pyproject.toml, lowest first; each is the list of its siblings."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [contract for contract in config if contract["type"] == "layers"]
    return [[name.strip(" ()") for name in layer.split("|")] for layer in reversed(contract["layers"])]


def modules(source: Path) -> dict[str, Path]:
    """Dotted name -> file, for every module under source/dnn2gp."""
    found = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path) -> Iterator[str]:
    """The absolute dotted names that a module imports; `from a import b` gives a.b, whatever b is."""
    parents = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            yield from (".".join([*base, alias.name]) for alias in node.names)


def import_graph(source: Path) -> Graph:
    """Module -> the modules of the package that it imports (a name inside a module counts as that module)."""
    known = modules(source)
    graph: Graph = {name: set() for name in known}
    for name, path in known.items():
        for target in imported(name, path):
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target and target != name:
                graph[name].add(target)
    return graph


def top(module: str) -> str:
    """dnn2gp.features.feature_map -> features; the package itself, and `python -m dnn2gp` -> ''."""
    name = module.split(".")[1] if "." in module else ""
    return "" if name == "__main__" else name


def violations(graph: Graph, layers: list[list[str]]) -> list[str]:
    """Imports that go up, to a sibling, or to the package's own __init__, and modules that no layer names."""
    level = {name: height for height, layer in enumerate(layers) for name in layer}
    found = [
        f"{module} is in no layer: give it a place in [tool.importlinter] of pyproject.toml"
        for module in graph
        if top(module) and top(module) not in level
    ]
    for module, targets in graph.items():
        for target in sorted(targets):
            below, above = top(target), top(module)
            if not above or above == below or above not in level:
                continue
            if not below:
                found.append(f"{module} imports {PACKAGE} itself: import from the module that defines the name")
            elif below in level and level[below] == level[above]:
                found.append(f"{module} imports its sibling {target}")
            elif below in level and level[below] > level[above]:
                found.append(f"{module} imports {target}, which is above it")
    return found


def cycle(graph: Graph) -> list[str]:
    """Modules that import one another in a ring, or [] if there are none."""
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return []
        for target in sorted(graph[module]):
            if ring := visit(target, [*trail, module]):
                return ring
        done.add(module)
        return []

    return next((ring for module in graph if (ring := visit(module, []))), [])


# The package ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_imports_go_down_the_layers() -> None:
    found = violations(import_graph(ROOT / "src"), declared_layers())
    assert not found, "\n".join(found)


def test_no_import_cycle() -> None:
    ring = cycle(import_graph(ROOT / "src"))
    assert not ring, " -> ".join(ring)


def test_plots_import_only_arrays_and_pictures() -> None:
    """No torch and no other room: a plot takes arrays and gives a figure. The report may use a few libraries more."""
    pictures = {"numpy", "matplotlib", "jaxtyping", *sys.stdlib_module_names}
    report = pictures | {"scipy", "PIL", "plotly", "jinja2", "markupsafe"}
    own = tuple(f"{PACKAGE}.{room}" for room in ("plots", "support"))
    found = []
    for name, path in modules(ROOT / "src").items():
        allowed = report if name.startswith(f"{PACKAGE}.plots.report") else pictures
        for target in imported(name, path) if top(name) == "plots" else ():
            if not target.startswith(own) and target.split(".")[0] not in allowed:
                found.append(f"{name} imports {target}")
    assert not found, "\n".join(found)


def loaded_after(statement: str, names: tuple[str, ...]) -> list[str]:
    """Which of these packages a statement imports, in a process of its own."""
    code = f"import sys; {statement}; print(*[name for name in {names} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.slow
def test_import_is_light() -> None:
    heavy = ("scipy", "sklearn", "optuna", "pandas", "matplotlib", "rich", "joblib", "typer", "psutil")
    statement = f"from {PACKAGE} import *; from {PACKAGE} import tune"
    assert loaded_after(statement, heavy[:-1]) == []
    assert loaded_after(f"import {PACKAGE}; import {PACKAGE}.support.errors", ("torch", "numpy", *heavy)) == []


def test_public_names_are_those_of_their_rooms() -> None:
    """Imported on first use: the same names for type checkers, `__all__` and users."""
    import dnn2gp

    tree = ast.parse(Path(dnn2gp.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    seen = {a.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert sorted(seen) == sorted(dnn2gp.__all__)
    for name, room in seen.items():
        defined = importlib.import_module(f"dnn2gp.{name}") if room == "dnn2gp" else importlib.import_module(room)
        assert getattr(dnn2gp, name) is (defined if room == "dnn2gp" else getattr(defined, name))
    with pytest.raises(AttributeError, match="nothing"):
        _ = dnn2gp.nothing


# The checks themselves, on small packages -----------------------------------------------------------------------------

LAYERS = [["errors"], ["left", "right"], ["high"]]


def write(source: Path, **files: str) -> Graph:
    """A package of these modules, each given by its source; its import graph."""
    for name, text in {"__init__": "", **files}.items():
        path = source / PACKAGE / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return import_graph(source)


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("left", "from dnn2gp.high import x", "above"),
        ("left", "import dnn2gp.high", "above"),
        ("left", "from dnn2gp import high", "above"),
        ("left", "from . import high", "above"),
        ("left", "from .high import x", "above"),
        ("left", "def f():\n    from dnn2gp.high import x", "above"),
        ("left", "from dnn2gp.right import x", "sibling"),
        ("left", "from dnn2gp import SomeName", "itself"),
        ("other", "", "no layer"),
    ],
)
def test_a_violation_is_seen(tmp_path: Path, module: str, text: str, complaint: str) -> None:
    graph = write(tmp_path, **{"errors": "", "left": "", "right": "", "high": "", module: text})
    (found,) = violations(graph, LAYERS)
    assert complaint in found


def test_downward_imports_pass(tmp_path: Path) -> None:
    graph = write(
        tmp_path,
        __init__="from dnn2gp.high import x",
        errors="",
        left="import numpy\nfrom dnn2gp.errors import E",
        right__in____init__="from dnn2gp.right.part import y",
        right__in__part="from ..errors import E",
        high="from . import left, right",
    )
    assert graph["dnn2gp.right"] == {"dnn2gp.right.part"}
    assert graph["dnn2gp.right.part"] == {"dnn2gp.errors"}
    assert graph["dnn2gp.high"] == {"dnn2gp.left", "dnn2gp.right"}
    assert violations(graph, LAYERS) == []
    assert cycle(graph) == []


def test_a_cycle_inside_one_layer_is_seen(tmp_path: Path) -> None:
    graph = write(
        tmp_path,
        left__in____init__="",
        left__in__a="from dnn2gp.left.b import x",
        left__in__b="from dnn2gp.left.a import y",
    )
    assert violations(graph, LAYERS) == []
    assert cycle(graph) == ["dnn2gp.left.a", "dnn2gp.left.b", "dnn2gp.left.a"]
