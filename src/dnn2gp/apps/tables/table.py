"""CSV and Parquet files as data frames whose cells are numbers or text, with errors that say where a cell is."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd

from dnn2gp.apps.tables.dates import days, have_zones
from dnn2gp.support.errors import InputError
from dnn2gp.support.optional import needs_extra

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
            InputError: If there is no such column, in which case the message lists the columns, or more than one.
        """
        if name not in self.frame.columns:
            raise InputError(f"{self.name} has no column {name!r}{_suggestion(name, self.names)} {self._listing()}")
        found = self.frame[name]
        if isinstance(found, pd.DataFrame):
            raise InputError(f"{self.name} has several columns named {name!r}. Give each column its own name.")
        return found

    def texts(self, name: str) -> pd.Series:
        """The cells of a column as text, NaN where one is missing; whole numbers have no decimal point."""
        return pd.Series([_text(cell) for cell in self.column(name).tolist()], dtype=object)

    def numbers(self, name: str) -> np.ndarray:
        """The cells of a column as float64, NaN where one is missing.

        Raises:
            InputError: If a cell is not a number, is infinite, or is too large to be squared.
        """
        series = self.column(name)
        if pd.api.types.is_complex_dtype(series.dtype):
            raise InputError(
                f"{self.name}: column {name!r}: expected real numbers; got {series.dtype}. Make two columns of the "
                "real and imaginary parts, or of absolute value and angle."
            )
        if pd.api.types.is_numeric_dtype(series.dtype):
            values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            texts = self.texts(name)
            values = as_numbers(texts)
            self.refuse(name, np.isnan(values) & texts.notna().to_numpy(), "expected a number. Correct the cell.")
        large = np.abs(values) > _LARGEST
        self.refuse(name, large, "the number is infinite or too large. Correct the cell, or remove the row.")
        return values

    def days(self, name: str) -> np.ndarray:
        """The cells of a column of dates as days since 1970-01-01, NaN where one is missing.

        Raises:
            InputError: If a cell is not a date that can be read in one way only.
        """
        texts = self.texts(name)
        values = days(texts)
        bad = np.isnan(values) & texts.notna().to_numpy()
        self.refuse(name, bad, "expected a date such as 2024-03-31 or 2024-03-31 12:30. Correct the cell.")
        zones = have_zones(texts)
        if zones.any():
            bad = ~zones & texts.notna().to_numpy()
            self.refuse(name, bad, "expected a time zone, like other cells of the column. Add it to all, or to none.")
        return values

    def refuse(self, name: str, bad: np.ndarray, words: str) -> None:
        """Raise an `InputError` for the first of the rows whose cell in a column is invalid, if any is."""
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


_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_SAMPLE = 20
"""The number of lines from which the separator is guessed."""
_EXPECTED = "Expected a table: CSV as UTF-8 text, or Parquet"


def read_table(path: str | PathLike[str]) -> Table:
    """Read a CSV file (comma, semicolon, tab or bar; UTF-8; names in the first line) or a Parquet file.

    In a file with semicolons, numbers may have decimal commas.

    Raises:
        InputError: If the file is not a table; the message says on which line.
    """
    file = Path(path)
    if not file.exists():
        raise InputError(f"{file} does not exist. Give the path of a CSV or Parquet file.")
    if file.is_dir():
        raise InputError(f"{file} is a folder. Give the path of a CSV or Parquet file.")
    if not file.is_file():  # a pipe may never end, and neither does /dev/zero
        raise InputError(f"{file} is a pipe or a device. Write the table to a file, and give its path.")
    content = file.read_bytes()
    table = _parquet(file) if content[:4] == b"PAR1" else _csv(file.name, _decoded(file.name, content))
    twice = sorted(set(table.frame.columns[table.frame.columns.duplicated()]))
    if twice:
        raise InputError(f"{file.name} has several columns named {named(twice)}. Give each column its own name.")
    return table


def _decoded(name: str, content: bytes) -> str:
    if not content.strip():
        raise InputError(f"{name} is empty. Expected a line with the names of the columns, followed by the rows.")
    if content.startswith(b"PK\x03\x04"):
        raise InputError(f"{name} is a workbook or a zip archive. Export the sheet as CSV.")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name} is encoded as UTF-16. {_EXPECTED}; save it as UTF-8.")
    if b"\0" in content:
        raise InputError(f"{name} contains binary data. {_EXPECTED}.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"{name}, line {line}: not UTF-8 text. {_EXPECTED}; save it as UTF-8.") from None


def _csv(name: str, text: str) -> Table:
    separator = _separator(text)
    (_, header), *rows = _records(text, separator, name)
    names = [cell.strip() or f"Unnamed: {position}" for position, cell in enumerate(header)]
    if len(names) < 2:
        raise InputError(
            f"{name} has only one column, or its cells are not separated by {', '.join(_SEPARATORS.values())}. "
            "Expected a target column and at least one column to predict it from."
        )
    if not np.isnan(as_numbers(pd.Series(header))).any():
        raise InputError(f"{name}: the first line holds numbers ({named(header)}). Expected the names of the columns.")
    for line, cells in rows:
        if len(cells) != len(names):
            raise InputError(
                f"{name}, line {line}: expected {len(names)} cells, one per column of the first line; got "
                f"{len(cells)}. The separator is a {_SEPARATORS[separator]}; put text that contains it in quotes."
            )
    columns = [pd.Series([cells[position] for _, cells in rows], dtype=object) for position in range(len(names))]
    if separator == ";":
        columns = [_with_decimal_points(cells) for cells in columns]
    frame = pd.DataFrame(dict(enumerate(columns)))
    frame.columns = pd.Index(names, dtype=object)
    return Table(frame, name, tuple(line for line, _ in rows))


def _separator(text: str) -> str:
    """The separator that splits the first lines into the most cells, with the same number in every line."""

    def score(separator: str) -> tuple[float, int]:
        try:
            counts = [len(cells) for _, cells in islice(_records(text, separator), _SAMPLE)]
        except InputError:  # such as a whole line as one cell that is too long
            return (0.0, 0)
        alike = sum(count == counts[0] for count in counts) / len(counts)
        return (alike, counts[0]) if counts[0] > 1 else (0.0, 1)

    return max(_SEPARATORS, key=score)


def _records(text: str, separator: str, name: str = "the file") -> Iterator[tuple[int, list[str]]]:
    """The cells of each record with the line on which it starts, without blank lines."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    start = 1
    try:
        for cells in reader:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{name}, line {start}: expected cells of fewer than {csv.field_size_limit():,} characters, and every "
            f"quote closed; got a row that cannot be read as CSV ({error}). Look for a quote that is not closed."
        ) from None


def _with_decimal_points(cells: pd.Series) -> pd.Series:
    """Decimal commas as points, if that makes numbers of the whole column."""
    pointed = pd.Series([cell.strip().replace(",", ".") for cell in cells], dtype=object)
    numbers = ~np.isnan(as_numbers(pointed)) | pointed.isin(MISSING).to_numpy()
    return pointed if numbers.all() else cells


def _parquet(file: Path) -> Table:
    with needs_extra("cli", "Reading a Parquet file"):
        import pyarrow  # noqa: F401 (pandas needs it)
    try:
        frame = pd.read_parquet(file)
    except (ValueError, OSError) as error:  # pyarrow's own errors are of these kinds
        raise InputError(f"{file.name} is not a complete Parquet file ({error}). Write it again.") from None
    frame.columns = pd.Index([str(name) for name in frame.columns], dtype=object)
    return Table(frame, file.name)
