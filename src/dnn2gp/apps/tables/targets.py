"""The column to predict: a standardised number, or a class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, final

import numpy as np
import pandas as pd
from sklearn.preprocessing import StandardScaler

from dnn2gp.apps.tables.table import Table, as_numbers, named
from dnn2gp.support.errors import InputError

MAX_CLASSES = 50


class Target(ABC):
    """What is predicted, and how it is encoded."""

    task: ClassVar[str]
    name: str

    @staticmethod
    @abstractmethod
    def fit(table: Table, name: str, rows: np.ndarray) -> Target:
        """Fit mean and scale to some rows of a table; the classes are those of the whole table."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """The number of outputs of the network."""

    @abstractmethod
    def encode(self, table: Table) -> np.ndarray:
        """The targets of all rows: N × 1 standardised numbers, or N class indices."""

    def state(self) -> dict[str, Any]:
        """All fields, as JSON takes them."""
        return {"task": self.task, **asdict(self)}  # pyright: ignore[reportArgumentType] (all are dataclasses)


@final
@dataclass(frozen=True)
class NumberTarget(Target):
    """A number y, encoded as (y − mean) / scale."""

    task: ClassVar[str] = "regression"
    name: str
    mean: float
    scale: float

    @staticmethod
    def fit(table: Table, name: str, rows: np.ndarray) -> NumberTarget:
        _check_numeric(table, name)
        values = table.numbers(name)
        _check_present(table, name, np.isnan(values))
        if values[rows].min() == values[rows].max():
            where = "all rows" if values.min() == values.max() else "all training rows"
            raise InputError(
                f"{table.name}: the target {name!r} is {values[rows[0]]:g} in {where}, so there is nothing to predict. "
                "Choose another target, or add rows."
            )
        scaler = StandardScaler().fit(values[rows, None])
        return NumberTarget(name, float(scaler.mean_[0]), float(scaler.scale_[0]))  # type: ignore[index]

    @property
    def num_outputs(self) -> int:
        return 1

    def encode(self, table: Table) -> np.ndarray:
        return ((table.numbers(self.name) - self.mean) / self.scale)[:, None]


@final
@dataclass(frozen=True)
class ClassTarget(Target):
    """One of several classes, encoded as its index."""

    task: ClassVar[str] = "classification"
    name: str
    classes: tuple[str, ...]

    @staticmethod
    def fit(table: Table, name: str, rows: np.ndarray) -> ClassTarget:
        """The classes in alphabetical order, or by size if they are numbers."""
        texts = table.texts(name)
        _check_present(table, name, texts.isna().to_numpy())
        classes = pd.Series(sorted(texts.unique()), dtype=object)
        if len(classes) < 2:
            raise InputError(
                f"{table.name}: the target {name!r} is {classes[0]!r} in all rows. Classification needs at least two "
                "classes."
            )
        if len(classes) > MAX_CLASSES:
            raise InputError(
                f"{table.name}: the target {name!r} has {len(classes)} different values; expected at most "
                f"{MAX_CLASSES} classes. If it is a number, use --task regression."
            )
        return ClassTarget(name, tuple(classes[np.argsort(as_numbers(classes), kind="stable")]))

    @property
    def num_outputs(self) -> int:
        return len(self.classes)

    def encode(self, table: Table) -> np.ndarray:
        codes = pd.Categorical(table.texts(self.name), categories=self.classes).codes
        return np.asarray(codes, dtype=np.int64)


TASKS: dict[str, type[Target]] = {kind.task: kind for kind in (NumberTarget, ClassTarget)}


def target_from_state(state: Mapping[str, Any]) -> Target:
    """The inverse of `Target.state`."""
    fields = {
        name: tuple(value) if isinstance(value, list) else value for name, value in state.items() if name != "task"
    }
    return TASKS[state["task"]](**fields)


def _check_numeric(table: Table, name: str) -> None:
    dtype = table.column(name).dtype
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype):
        return
    different = table.texts(name).dropna().drop_duplicates()
    others = different[np.isnan(as_numbers(different))].tolist()
    if 2 * len(others) < len(different):
        return  # a few cells that are not numbers are refused by their position
    raise InputError(
        f"{table.name}: the target {name!r} holds text ({named(others)}), but a regression predicts numbers. To "
        "predict which text it is, use --task classification."
    )


def _check_present(table: Table, name: str, missing: np.ndarray) -> None:
    count = f" in {missing.sum()} rows" if missing.sum() > 1 else ""
    words = f"the target is missing{count}. Remove rows without a target, or predict them with --predict."
    table.refuse(name, missing, words)
