"""A data frame whose cells are read as numbers or as text, with errors that say where a cell is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pandas as pd

from dnn2gp.support.errors import InputError

MISSING = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "#N/A", "<NA>", "?"})
"""What text files have in place of a missing value."""
_LARGEST = 1e150  # its square is still a number
_LISTED = 30


@dataclass(frozen=True, eq=False)
class Table:
    """Rows and columns as they were read: the cells of a text file are text."""

    frame: pd.DataFrame
    name: str
    """The name of the file, for messages."""
    lines: tuple[int, ...] | None = None
    """The line of the file on which each row starts, counted from 1; None if the file has no lines."""

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.frame.columns)

    def where(self, row: int, column: str) -> str:
        """The position of a cell, in words."""
        place = f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"
        return f"{self.name}, {place}, column {column!r}"

    def first(self, count: int) -> Table:
        """The table of the first `count` rows."""
        return Table(self.frame.iloc[:count], self.name, None if self.lines is None else self.lines[:count])

    def column(self, name: str) -> pd.Series:
        """A column by its name.

        Raises:
            InputError: If there is no such column; the message lists the columns.
        """
        if name not in self.frame.columns:
            raise InputError(f"{self.name} has no column {name!r}{_suggestion(name, self.names)} {self._listing()}")
        return self.frame[name]

    def texts(self, name: str) -> pd.Series:
        """The cells of a column as text, NaN where one is missing; whole numbers have no decimal point."""
        return pd.Series([_text(cell) for cell in self.column(name).tolist()], dtype=object)

    def numbers(self, name: str) -> np.ndarray:
        """The cells of a column as float64, NaN where one is missing.

        Raises:
            InputError: If a cell is not a number, is infinite, or is too large to be squared.
        """
        series = self.column(name)
        if pd.api.types.is_numeric_dtype(series.dtype):
            values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            texts = self.texts(name)
            values = as_numbers(texts)
            self.refuse(name, np.isnan(values) & texts.notna().to_numpy(), "expected a number. Correct the cell.")
        large = np.abs(values) > _LARGEST
        self.refuse(name, large, "the number is infinite or too large. Correct the cell, or remove the row.")
        return values

    def refuse(self, name: str, bad: np.ndarray, words: str) -> None:
        """Raise an `InputError` for the first of the rows whose cell in a column is bad, if any is."""
        rows = np.flatnonzero(bad)
        if len(rows):
            cell = self.texts(name)[rows[0]]
            got = f" (got {cell!r})" if isinstance(cell, str) else ""
            raise InputError(f"{self.where(int(rows[0]), name)}{got}: {words}")

    def _listing(self) -> str:
        shown = ", ".join(self.names[:_LISTED])
        more = f" and {len(self.names) - _LISTED} more" if len(self.names) > _LISTED else ""
        return f"Its columns are: {shown}{more}."


def as_numbers(texts: pd.Series) -> np.ndarray:
    """Text as float64, NaN where it is not a number."""
    return np.asarray(pd.to_numeric(texts, errors="coerce"), dtype=np.float64)


def named(names: Sequence[str]) -> str:
    """A short list of names: 'a', 'b' and 3 more."""
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _text(cell: object) -> object:
    text = str(cell).strip()
    if text in MISSING or cell is None or cell is pd.NaT:
        return np.nan
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return text.lower() if text.lower() in ("true", "false") else text


def _suggestion(name: str, names: Sequence[str]) -> str:
    lower = {known.lower(): known for known in reversed(names)}
    close = get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return f"; did you mean {lower[close[0]]!r}?" if close else "."
