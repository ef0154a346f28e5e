"""The base install: what it can do without any extra, and what users are told where it is not enough."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NAMES = {"scikit-learn": "sklearn", "pillow": "PIL"}  # where the package is imported by another name
OPTIONAL = sorted(
    NAMES.get(package, package)
    for extra in ("plots", "sklearn", "tune", "cli", "paper")
    for package in {re.match(r"[\w-]+", line)[0] for line in EXTRAS[extra]} - {"dnn2gp"}  # type: ignore[index]
)
# Package that is missing -> statement, and the extra that its error names.
CASES = {
    "matplotlib": ("import dnn2gp.plots", "plots"),
    "PIL": ("import dnn2gp.plots.report", "plots"),
    "plotly": ("import dnn2gp.plots.report", "plots"),
    "jinja2": ("import dnn2gp.plots.report", "plots"),
    "sklearn": ("import dnn2gp.estimators", "sklearn"),
    "joblib": ("dnn2gp.tune.grid(lambda **_: 0.0, {'a': [1]})", "tune"),
    "threadpoolctl": ("dnn2gp.tune.grid(lambda **_: 0.0, {'a': [1]})", "tune"),
    "optuna": ("dnn2gp.tune.study(lambda trial: 0.0, num_trials=1)", "tune"),
    "typer": ("import dnn2gp.apps.cli", "cli"),
    "rich": ("import dnn2gp.apps.cli", "cli"),
    "pandas": ("import dnn2gp.apps.table_tuning", "cli"),
    "pyarrow": ("from dnn2gp.apps.tables import read_table; read_table('table.parquet')", "cli"),
}
OTHERS = [("sklearn", "import dnn2gp.paper", "paper"), ("sklearn", "import dnn2gp.apps.demo", "cli")]

# Each case runs in a fork of one process that has imported torch, so that none waits for it again.
FORKS = """
import os, sys, torch, scipy, safetensors.torch, jaxtyping
for package, statement, extra in {cases!r}:
    child = os.fork()
    if child == 0:
        sys.modules[package] = None
        import dnn2gp
        from dnn2gp.support.errors import MissingExtraError
        try:
            exec(statement)
        except MissingExtraError as error:
            right = error.name == package and f'pip install "dnn2gp[{{extra}}]"' in str(error)
            print(package, "right" if right else str(error), flush=True)
        except BaseException as error:
            print(package, repr(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""

BASE = """
import sys
for package in {packages!r}:
    sys.modules[package] = None
import torch, dnn2gp
x = torch.linspace(-1, 1, 12, dtype=torch.float64)[:, None]
network = torch.nn.Linear(1, 1).double()
gp = dnn2gp.convert(network, (x, 2 * x), dnn2gp.GaussianLikelihood(), progress=True)
dnn2gp.save(gp, "gp.safetensors")
again = dnn2gp.load("gp.safetensors", torch.nn.Linear(1, 1).double())
assert torch.allclose(gp.predict(x).variance, again.predict(x).variance)
assert gp.evidence().value == again.evidence().value
print(dnn2gp.diagnose(gp))
dnn2gp.tune.gradient(network, (x, 2 * x), dnn2gp.GaussianLikelihood(), progress=True)
dnn2gp.VOGN
"""


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_every_optional_package_has_a_case() -> None:
    assert set(CASES) == set(OPTIONAL)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_missing_package_names_its_extra(tmp_path: Path) -> None:
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    cases = [(package, *case) for package, case in CASES.items()] + OTHERS
    result = python("-c", FORKS.format(cases=cases), folder=tmp_path)
    assert result.stdout.splitlines() == [f"{package} right" for package, *_ in cases], result.stderr


@pytest.mark.slow
def test_the_base_install_is_enough_for_a_gp(tmp_path: Path) -> None:
    result = python("-W", "ignore", "-c", BASE.format(packages=OPTIONAL), folder=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_command_without_its_extra_says_so_in_one_line(tmp_path: Path) -> None:
    code = "import sys; sys.modules['typer'] = None; from dnn2gp.__main__ import main; main()"
    result = python("-c", code, folder=tmp_path)
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert 'pip install "dnn2gp[cli]"' in result.stderr
