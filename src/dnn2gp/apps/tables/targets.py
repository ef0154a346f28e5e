"""The column to predict: a number, standardised, or one of some classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, final

import numpy as np
import pandas as pd

from dnn2gp.apps.tables.columns import finite_numbers, moments
from dnn2gp.apps.tables.table import Table, named, number
from dnn2gp.support.errors import InputError

MAX_CLASSES = 50


class Target(ABC):
    """What is predicted, and how it is encoded."""

    task: ClassVar[str]
    name: str

    @staticmethod
    @abstractmethod
    def fit(table: Table, name: str, rows: np.ndarray) -> Target:
        """From these rows of a table, the classes from all."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Of the network."""

    @abstractmethod
    def encode(self, table: Table) -> np.ndarray:
        """The targets of every row: N × 1 standardised numbers, or N labels."""

    def state(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return {"task": self.task, **asdict(self)}  # pyright: ignore[reportArgumentType] (all are dataclasses)


@final
@dataclass(frozen=True)
class NumberTarget(Target):
    """A number y, as (y − mean) / scale."""

    task: ClassVar[str] = "regression"
    name: str
    mean: float
    scale: float

    @staticmethod
    def fit(table: Table, name: str, rows: np.ndarray) -> NumberTarget:
        """Mean and standard deviation of these rows."""
        _check_numbers(table, name)
        values = finite_numbers(table, name)
        _check_there(table, name, np.isnan(values))
        mean, scale = moments(table, name, values[rows])
        if scale == 0:
            rest = "all rows" if values.min() == values.max() else "all rows to train on"
            raise InputError(
                f"{table.name}: the target {name!r} is {values[rows[0]]:g} in {rest}: there is nothing to predict. "
                "Give another target, or more rows."
            )
        return NumberTarget(name, mean, scale)

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    def encode(self, table: Table) -> np.ndarray:
        """(y − mean) / scale, N × 1."""
        return ((finite_numbers(table, self.name) - self.mean) / self.scale)[:, None]


@final
@dataclass(frozen=True)
class ClassTarget(Target):
    """One of some classes, as the label 0, 1, … of its place among them."""

    task: ClassVar[str] = "classification"
    name: str
    classes: tuple[str, ...]

    @staticmethod
    def fit(table: Table, name: str, rows: np.ndarray) -> ClassTarget:
        """The classes of the whole table, numbers in the order of their size."""
        texts = table.texts(name)
        _check_there(table, name, np.array([text is None for text in texts]))
        classes = sorted({text for text in texts if text is not None}, key=_order)
        if len(classes) < 2:
            raise InputError(
                f"{table.name}: the target {name!r} is {classes[0]!r} in all rows. Classification needs two classes at "
                "least."
            )
        if len(classes) > MAX_CLASSES:
            raise InputError(
                f"{table.name}: the target {name!r} has {len(classes)} different values; expected {MAX_CLASSES} "
                "classes at the most. If it is a number, use --task regression."
            )
        return ClassTarget(name, tuple(classes))

    @property
    def num_outputs(self) -> int:
        """One for each class."""
        return len(self.classes)

    def encode(self, table: Table) -> np.ndarray:
        """The labels, N integers."""
        place = {text: position for position, text in enumerate(self.classes)}
        return np.array([place[text] for text in table.texts(self.name) if text is not None], dtype=np.int64)


TASKS: dict[str, type[Target]] = {kind.task: kind for kind in (NumberTarget, ClassTarget)}


def _check_numbers(table: Table, name: str) -> None:
    series = table.column(name)
    if pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_bool_dtype(series.dtype):
        return
    texts = [text for text in table.texts(name) if text is not None]
    others = [text for text in dict.fromkeys(texts) if number(text) is None]
    if not others:
        return
    if 2 * len(others) < len(set(texts)):
        table.numbers(name)  # a few cells that are no numbers: an error that says where
    raise InputError(
        f"{table.name}: the target {name!r} holds texts ({named(others)}); a regression predicts numbers. To predict "
        "which of them it is, use --task classification."
    )


def _check_there(table: Table, name: str, missing: np.ndarray) -> None:
    rows = np.flatnonzero(missing)
    if len(rows):
        count = f" ({len(rows)} rows are without it)" if len(rows) > 1 else ""
        raise InputError(
            f"{table.where(int(rows[0]), name)}: the target is missing{count}. Remove rows without a target, or "
            "predict them: --predict."
        )


def _order(text: str) -> tuple[bool, float, str]:
    value = number(text)
    return (value is None, 0.0 if value is None else value, text)
