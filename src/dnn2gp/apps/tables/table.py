"""A table with names for its places, and its cells as texts, numbers or truths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pandas as pd

from dnn2gp.support.errors import InputError

MISSING = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "#N/A", "<NA>", "?"})
"""What stands in a text file where a value is missing."""
TRUTHS = {"true": 1.0, "false": 0.0}
_SHOWN = 30


@dataclass(frozen=True, eq=False)
class Table:
    """Rows and columns as they came: cells of a text file are texts still."""

    frame: pd.DataFrame
    name: str
    """Of the file, for messages."""
    lines: tuple[int, ...] | None = None
    """The line of the file on which each row begins, the first line being 1; None where there are no lines."""

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.frame)

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return list(self.frame.columns)

    def where(self, row: int, column: str) -> str:
        """The place of a cell, in words."""
        place = f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"
        return f"{self.name}, {place}, column {column!r}"

    def first(self, count: int) -> Table:
        """Its first rows."""
        return Table(self.frame.iloc[:count], self.name, None if self.lines is None else self.lines[:count])

    def column(self, name: str) -> pd.Series:
        """A column by its name, or an error that lists the columns there are."""
        if name not in self.frame.columns:
            raise InputError(f"{self.name} has no column {name!r}{_suggestion(name, self.names)} {self._listing()}")
        return self.frame[name]

    def texts(self, name: str) -> list[str | None]:
        """The cells of a column as texts, None where one is missing; a whole number is written without a point."""
        return [_text(cell) for cell in self.column(name).tolist()]

    def numbers(self, name: str) -> np.ndarray:
        """The cells of a column as numbers, NaN where one is missing; a cell that is no number is an error."""
        series = self.column(name)
        if pd.api.types.is_numeric_dtype(series.dtype):
            return series.to_numpy(dtype=np.float64, na_value=np.nan)
        return self._parsed(name, number, "a number")

    def truths(self, name: str) -> np.ndarray:
        """The cells of a column as 1 (true) and 0 (false), NaN where one is missing."""
        return self._parsed(name, truth, "true or false")

    def _parsed(self, name: str, parse: Callable[[str], float | None], expected: str) -> np.ndarray:
        texts = self.texts(name)
        values = [math.nan if text is None else parse(text) for text in texts]
        for row, value in enumerate(values):
            if value is None:
                raise InputError(f"{self.where(row, name)}: expected {expected}; got {texts[row]!r}. Correct the cell.")
        return np.array(values, dtype=np.float64)

    def _listing(self) -> str:
        shown = ", ".join(self.names[:_SHOWN])
        more = f" and {len(self.names) - _SHOWN} more" if len(self.names) > _SHOWN else ""
        return f"Its columns are: {shown}{more}."


def number(text: str) -> float | None:
    """The number that a text is; None if it is none. Infinity is a number here, to be refused by its place."""
    if "_" in text:  # Python's own way to group digits
        return None
    try:
        return float(text)
    except ValueError:
        return None


def truth(text: str) -> float | None:
    """1 for true, 0 for false, in small letters or capitals; None for any other text."""
    return TRUTHS.get(text.lower())


def named(names: Sequence[str]) -> str:
    """'a', 'b' and 3 more: a list of columns that stays short."""
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _text(cell: object) -> str | None:
    if isinstance(cell, str):
        stripped = cell.strip()
        return None if stripped in MISSING else stripped
    if cell is None or cell is pd.NaT or cell is pd.NA or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)


def _suggestion(name: str, names: Sequence[str]) -> str:
    by_small_letters = {known.lower(): known for known in reversed(names)}
    close = get_close_matches(name.lower(), by_small_letters, n=1, cutoff=0.6)
    return f"; did you mean {by_small_letters[close[0]]!r}?" if close else "."
