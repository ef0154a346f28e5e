"""CSV and Parquet files as tables, every place in them known by its line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import islice
from os import PathLike
from pathlib import Path

import pandas as pd

from dnn2gp.apps.tables.table import MISSING, Table, named, number
from dnn2gp.support.errors import InputError
from dnn2gp.support.optional import needs_extra

_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_LOOKED_AT = 20
"""Lines from which the separator is told."""
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")


def read_table(path: str | PathLike[str]) -> Table:
    """A CSV file (separated by commas, semicolons, tabs or bars; UTF-8; names in the first line) or a Parquet file.

    In a file with semicolons, a column of numbers may have decimal commas.
    """
    file = Path(path)
    if not file.exists():
        raise InputError(f"{file} does not exist. Give the path of a CSV or Parquet file.")
    if file.is_dir():
        raise InputError(f"{file} is a folder. Give the path of a CSV or Parquet file.")
    content = file.read_bytes()
    table = _parquet(file) if content[:4] == b"PAR1" else _csv(file.name, _decoded(file, content))
    names = table.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{file.name} has several columns of the name {named(twice)}. Give each a name of its own.")
    return table


def _decoded(file: Path, content: bytes) -> str:
    if not content.strip():
        raise InputError(f"{file.name} is empty. Expected a line with the names of the columns, then the rows.")
    if content.startswith(b"PK\x03\x04"):
        raise InputError(f"{file.name} is a workbook or a zip archive. Export the sheet as CSV.")
    expected = "Expected a table: CSV as UTF-8 text, or Parquet"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{file.name} is text in UTF-16. {expected}; save it as UTF-8.")
    if b"\0" in content:
        raise InputError(f"{file.name} is no table: it holds binary data. {expected}.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"{file.name}, line {line}: not UTF-8 text. {expected}; save it as UTF-8.") from None


def _csv(name: str, text: str) -> Table:
    separator = _separator(text)
    records = _records(name, text, separator)
    (_, header), rows = records[0], records[1:]
    names = [cell.strip() or f"Unnamed: {position}" for position, cell in enumerate(header)]
    if len(names) < 2:
        tried = ", ".join(_SEPARATORS.values())
        raise InputError(
            f"{name} has one column only, or cells that are parted by something else than {tried}. Expected a target "
            "column and one column at least to predict it from."
        )
    if all(number(cell) is not None for cell in header):
        raise InputError(f"{name}: its first line holds numbers ({named(header)}). Expected the names of the columns.")
    for line, cells in rows:
        if len(cells) != len(names):
            raise InputError(
                f"{name}, line {line}: expected {len(names)} cells, one for each column of the first line; got "
                f"{len(cells)}. Separator: {_SEPARATORS[separator]}; a text that holds it must be in quotes."
            )
    cells = [[row[position] for _, row in rows] for position in range(len(names))]
    if separator == ";":
        cells = [_with_points(column) for column in cells]
    frame = pd.DataFrame(dict(enumerate(cells)), dtype=object)
    frame.columns = pd.Index(names, dtype=object)
    return Table(frame, name, tuple(line for line, _ in rows))


def _separator(text: str) -> str:
    """The one that parts the first lines into the most cells, as many in every line as in the first."""

    def score(separator: str) -> tuple[float, int]:
        counts = [len(cells) for _, cells in islice(_parsed(text, separator), _LOOKED_AT)]
        alike = sum(count == counts[0] for count in counts) / len(counts)
        return (alike, counts[0]) if counts[0] > 1 else (0.0, 1)

    return max(_SEPARATORS, key=score)


def _records(name: str, text: str, separator: str) -> list[tuple[int, list[str]]]:
    try:
        return list(_parsed(text, separator))
    except csv.Error as error:
        raise InputError(f"{name} is no CSV file ({error}). Look for a quote that is not closed.") from None


def _parsed(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each record with the line it begins on; lines without any cell are left out."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    begin = 1
    for cells in reader:
        if len(cells) > 1 or (cells and cells[0].strip()):
            yield begin, cells
        begin = reader.line_num + 1


def _with_points(cells: list[str]) -> list[str]:
    """Decimal commas as points, if that makes the whole column one of numbers."""
    values = [cell.strip() for cell in cells]
    if not any(_DECIMAL_COMMA.fullmatch(value) for value in values):
        return cells
    pointed = [value.replace(",", ".") if _DECIMAL_COMMA.fullmatch(value) else value for value in values]
    return pointed if all(value in MISSING or number(value) is not None for value in pointed) else cells


def _parquet(file: Path) -> Table:
    with needs_extra("cli", "Reading a Parquet file"):
        import pyarrow  # noqa: F401 (pandas needs it)
    try:
        frame = pd.read_parquet(file)
    except (ValueError, OSError) as error:  # pyarrow's own errors are of these kinds
        raise InputError(f"{file.name} is not a whole Parquet file ({error}). Write it again.") from None
    frame.columns = pd.Index([str(name) for name in frame.columns], dtype=object)
    return Table(frame, file.name)
