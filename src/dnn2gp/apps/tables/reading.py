"""CSV and Parquet files as tables that know the line of each row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import islice
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd

from dnn2gp.apps.tables.table import MISSING, Table, as_numbers, named
from dnn2gp.support.errors import InputError
from dnn2gp.support.optional import needs_extra

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
    content = file.read_bytes()
    table = _parquet(file) if content[:4] == b"PAR1" else _csv(file.name, _decoded(file.name, content))
    twice = sorted({name for name in table.names if table.names.count(name) > 1})
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
    try:
        (_, header), *rows = _records(text, separator)
    except csv.Error as error:
        raise InputError(f"{name} is not a CSV file ({error}). Look for a quote that is not closed.") from None
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
        counts = [len(cells) for _, cells in islice(_records(text, separator), _SAMPLE)]
        alike = sum(count == counts[0] for count in counts) / len(counts)
        return (alike, counts[0]) if counts[0] > 1 else (0.0, 1)

    return max(_SEPARATORS, key=score)


def _records(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each record with the line on which it starts, without blank lines."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    start = 1
    for cells in reader:
        if len(cells) > 1 or (cells and cells[0].strip()):
            yield start, cells
        start = reader.line_num + 1


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
