"""Columns as a network sees them: numbers standardised, true and false as 1 and 0, categories one input each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, final

import numpy as np

from dnn2gp.apps.tables.table import Table
from dnn2gp.support.errors import InputError


class Column(ABC):
    """How one column becomes inputs of the network; known from the rows that it was fitted to."""

    kind: ClassVar[str]
    name: str

    @staticmethod
    @abstractmethod
    def fit(table: Table, name: str, rows: np.ndarray, impute: bool) -> Column:
        """From these rows of a table, the categories from all; `impute` fills cells that are missing later on."""

    @staticmethod
    @abstractmethod
    def missing(table: Table, name: str) -> np.ndarray:
        """The rows whose cell is missing."""

    @property
    @abstractmethod
    def fills(self) -> bool:
        """Whether a missing cell is filled rather than refused."""

    @property
    @abstractmethod
    def num_inputs(self) -> int:
        """The number of inputs it becomes."""

    @abstractmethod
    def encode(self, table: Table) -> np.ndarray:
        """The inputs of every row, N × num_inputs, of a table with no missing cell that is not filled."""

    def state(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return {"kind": self.kind, **asdict(self)}  # pyright: ignore[reportArgumentType] (all kinds are dataclasses)


@final
@dataclass(frozen=True)
class Number(Column):
    """A number x, as (x − mean) / scale."""

    kind: ClassVar[str] = "number"
    name: str
    mean: float
    scale: float
    """The standard deviation; 1 where all the fitted rows have the same number."""
    fill: float | None
    """The median, if missing cells are filled."""

    @staticmethod
    def fit(table: Table, name: str, rows: np.ndarray, impute: bool) -> Number:
        """Median, mean and standard deviation of these rows, the mean and deviation with missing cells filled."""
        own = finite_numbers(table, name)[rows]
        known = own[~np.isnan(own)]
        if not len(known):
            raise InputError(f"{table.name}: column {name!r} has no number in the rows to train on. Leave it out.")
        middle = float(np.median(known))
        filled = np.where(np.isnan(own), middle, own)
        mean, scale = moments(table, name, filled)
        return Number(name, mean, scale if scale > 0 else 1.0, middle if impute else None)

    @property
    def fills(self) -> bool:
        """Whether there is a median to fill in."""
        return self.fill is not None

    @property
    def num_inputs(self) -> int:
        """One."""
        return 1

    @staticmethod
    def missing(table: Table, name: str) -> np.ndarray:
        """The rows without a number."""
        return np.flatnonzero(np.isnan(finite_numbers(table, name)))

    def encode(self, table: Table) -> np.ndarray:
        """(x − mean) / scale."""
        values = finite_numbers(table, self.name)
        filled = values if self.fill is None else np.where(np.isnan(values), self.fill, values)
        return ((filled - self.mean) / self.scale)[:, None]


@final
@dataclass(frozen=True)
class Flag(Column):
    """True as 1, false as 0."""

    kind: ClassVar[str] = "flag"
    name: str
    fill: bool | None
    """The more frequent of the two, if missing cells are filled."""

    @staticmethod
    def fit(table: Table, name: str, rows: np.ndarray, impute: bool) -> Flag:
        """The more frequent of the two in these rows."""
        own = table.truths(name)[rows]
        return Flag(name, bool(np.nansum(own) * 2 >= np.sum(~np.isnan(own))) if impute else None)

    @property
    def fills(self) -> bool:
        """Whether there is a value to fill in."""
        return self.fill is not None

    @property
    def num_inputs(self) -> int:
        """One."""
        return 1

    @staticmethod
    def missing(table: Table, name: str) -> np.ndarray:
        """The rows with neither."""
        return np.flatnonzero(np.isnan(table.truths(name)))

    def encode(self, table: Table) -> np.ndarray:
        """1 or 0."""
        values = table.truths(self.name)
        return (values if self.fill is None else np.where(np.isnan(values), float(self.fill), values))[:, None]


@final
@dataclass(frozen=True)
class Category(Column):
    """A text out of some, as an input for each of them that is 1 for its own and 0 for others (one-hot)."""

    kind: ClassVar[str] = "category"
    name: str
    categories: tuple[str, ...]
    fill: str | None
    """The most frequent one, if missing cells are filled."""

    @staticmethod
    def fit(table: Table, name: str, rows: np.ndarray, impute: bool) -> Category:
        """The categories of the whole table; the most frequent one of these rows."""
        texts = table.texts(name)
        known = sorted({text for text in texts if text is not None})
        counts = Counter(text for row in rows if (text := texts[row]) is not None)
        common = max(known, key=lambda text: counts[text]) if impute else None
        return Category(name, tuple(known), common)

    @property
    def fills(self) -> bool:
        """Whether there is a category to fill in."""
        return self.fill is not None

    @property
    def num_inputs(self) -> int:
        """One for each category."""
        return len(self.categories)

    @staticmethod
    def missing(table: Table, name: str) -> np.ndarray:
        """The rows without a text."""
        return np.flatnonzero([text is None for text in table.texts(name)])

    def encode(self, table: Table) -> np.ndarray:
        """One-hot; a category that was not there when it was fitted is an error."""
        texts = [self.fill if text is None else text for text in table.texts(self.name)]
        place = {text: position for position, text in enumerate(self.categories)}
        for row, text in enumerate(texts):
            if text not in place:
                raise InputError(
                    f"{table.where(row, self.name)}: {text!r} is none of the {len(place)} categories that the model "
                    f"knows ({_some(self.categories)}). Correct the cell, or tune with rows that have it."
                )
        return np.eye(len(place))[[place[text] for text in texts if text is not None]]


KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Number, Flag, Category)}


def finite_numbers(table: Table, name: str) -> np.ndarray:
    """The numbers of a column, NaN where one is missing; an infinite one is refused."""
    values = table.numbers(name)
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise InputError(
            f"{table.where(int(infinite[0]), name)}: infinite, or too large for a number. Correct the cell, or remove "
            "the row."
        )
    return values


def moments(table: Table, name: str, values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation; 0 where all values are the same, whatever rounding says."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = float(values.mean()), float(values.std())
    if not np.isfinite([mean, scale]).all():
        raise InputError(f"{table.name}: the numbers of column {name!r} are too large to be squared. Rescale them.")
    return mean, scale if values.min() < values.max() else 0.0


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
