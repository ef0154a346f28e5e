"""The configuration of `dnn2gp tune`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dnn2gp.apps.tables import TASKS
from dnn2gp.network.mlp import ACTIVATIONS
from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import seed_number, whole_number


@dataclass(frozen=True)
class TableTuningConfig:
    """Tune widths (and depths), δ and σ on a table."""

    data: Path | None = None
    """A CSV or Parquet file; None: scikit-learn's diabetes data."""
    target: str | None = None
    """The column to predict; None is allowed only without `data`."""
    task: str = "regression"
    widths: tuple[int, ...] | None = None
    """Hidden units per layer to try; None: 2, 5, 10, 20 and 50, except those with too many weights for the table."""
    depths: tuple[int, ...] = (1,)
    """Hidden layers to try, each with every width."""
    activation: str = "tanh"
    repeats: int = 3
    """Training runs per setting, which differ in their initial weights."""
    restarts: int = 4
    """Random starts per training run; the one with the largest evidence is kept."""
    max_rounds: int = 20
    """The largest number of rounds per training run; each trains the weights and then chooses δ and σ."""
    test_share: float = 0.2
    """The share of the rows that is held out as test rows and not used for any choice; 0: none."""
    max_rows: int | None = None
    """Use only this many rows of the table; None: all."""
    predict: Path | None = None
    """A table to predict."""
    impute: bool = False
    """Fill in missing cells instead of raising an error."""
    drop_constant: bool = False
    """Leave out constant columns instead of raising an error."""
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    """Numeric columns to treat as categories."""
    jobs: int | None = None
    """The number of processes; None: one per processor."""
    seed: int = 0
    resume: bool = False
    """Continue from the finished jobs in `out`."""
    out: Path = Path("dnn2gp-tune")

    @staticmethod
    def preset(name: str) -> TableTuningConfig:
        """The preset "default", or "smoke", which is small and only checks that everything works."""
        presets = {
            "default": TableTuningConfig(),
            "smoke": TableTuningConfig(widths=(2, 4), repeats=2, restarts=1, max_rounds=2, max_rows=100, jobs=1),
        }
        if name not in presets:
            raise InputError(f"preset: expected one of {', '.join(presets)}; got {name!r}.")
        return presets[name]

    def check(self) -> None:
        """Raise an `InputError` for invalid settings, before anything is read."""
        for name, values in (("width", self.widths or (1,)), ("depth", self.depths)):
            for value in values:
                whole_number(name, value)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name}: expected distinct integers ≥ 1; got {', '.join(map(str, values))}.")
        if self.activation not in ACTIVATIONS:
            raise InputError(f"activation: expected one of {', '.join(ACTIVATIONS)}; got {self.activation!r}.")
        if self.task not in TASKS:
            raise InputError(f"task: expected one of {', '.join(TASKS)}; got {self.task!r}.")
        for name in ("repeats", "restarts", "max_rounds"):
            whole_number(name, getattr(self, name))
        for name in ("jobs", "max_rows"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))
        seed_number("seed", self.seed)
        if not 0 <= self.test_share <= 0.9:
            raise InputError(f"test-share: expected a share of the rows from 0 to 0.9; got {self.test_share:g}.")
