"""What `dnn2gp tune` does, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dnn2gp.apps.tables.targets import TASKS
from dnn2gp.network.mlp import ACTIVATIONS
from dnn2gp.support.errors import InputError


@dataclass(frozen=True)
class TableTuningConfig:
    """One tuning of widths (and depths), δ and σ on a table."""

    data: Path | None = None
    """A CSV or Parquet file; None: scikit-learn's diabetes data."""
    target: str | None = None
    """The column to predict; None only without `data`."""
    task: str = "regression"
    widths: tuple[int, ...] | None = None
    """Hidden units of a layer, each to be tried; None: 2, 5, 10, 20 and 50, but for those that make many weights."""
    depths: tuple[int, ...] = (1,)
    """Hidden layers, each to be tried with every width."""
    activation: str = "tanh"
    repeats: int = 3
    """Trainings of every setting, which differ in their first weights."""
    restarts: int = 4
    """Starts of a training, of which the one with the largest evidence is kept."""
    max_rounds: int = 20
    """Of training and choosing δ and σ in turns."""
    test_share: float = 0.2
    """Rows held out, to measure on and never to choose by; 0: none."""
    max_rows: int | None = None
    """Rows of the table that are used; None: all."""
    predict: Path | None = None
    """A table to predict."""
    impute: bool = False
    """Fill missing cells, rather than refuse them."""
    drop_constant: bool = False
    """Leave out columns whose cells are all the same, rather than refuse them."""
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    """Columns whose numbers are names."""
    jobs: int | None = None
    """Processes; None: one for each processor."""
    seed: int = 0
    resume: bool = False
    """Go on with the finished jobs in `out`."""
    out: Path = Path("dnn2gp-tune")

    @staticmethod
    def preset(name: str) -> TableTuningConfig:
        """ "default", or "smoke": a little of everything, to see that it works."""
        presets = {
            "default": TableTuningConfig(),
            "smoke": TableTuningConfig(widths=(2, 4), repeats=2, restarts=1, max_rounds=2, max_rows=100, jobs=1),
        }
        if name not in presets:
            raise InputError(f"preset: expected one of {', '.join(presets)}; got {name!r}.")
        return presets[name]

    def check(self) -> None:
        """Refuse what means nothing, before anything is read."""
        for name, values in (("width", self.widths or (1,)), ("depth", self.depths)):
            if not values or min(values) < 1 or len(set(values)) < len(values):
                raise InputError(f"{name}: expected numbers from 1 on, each once; got {', '.join(map(str, values))}.")
        if self.activation not in ACTIVATIONS:
            raise InputError(f"activation: expected one of {', '.join(ACTIVATIONS)}; got {self.activation!r}.")
        if self.task not in TASKS:
            raise InputError(f"task: expected one of {', '.join(TASKS)}; got {self.task!r}.")
        for name in ("repeats", "restarts", "max_rounds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1; got {getattr(self, name)}.")
        if self.jobs is not None and self.jobs < 1:
            raise InputError(f"jobs: expected at least 1 process; got {self.jobs}.")
        if not 0 <= self.test_share <= 0.9:
            raise InputError(f"test-share: expected a share of the rows from 0 to 0.9; got {self.test_share:g}.")
