"""Which columns a network is to see, and what kind of column each is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dnn2gp.apps.tables.columns import Category, Column, Flag, Number
from dnn2gp.apps.tables.table import Table, named, number, truth
from dnn2gp.support.errors import InputError

MAX_CATEGORIES = 100
"""A column of more texts than this is an id, or free text."""
# So many rows may have a text of their own by chance.
_FEW = 10


def feature_kinds(
    table: Table,
    target: str,
    *,
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    drop_constant: bool = False,
) -> dict[str, type[Column]]:
    """The kind of every column that the target is predicted from.

    target         the column to predict
    categorical    columns whose numbers are names (codes, postal areas)
    drop           columns to leave out
    drop_constant  leave out columns whose cells are all the same, which are refused otherwise
    """
    for name in (target, *categorical, *drop):
        table.column(name)
    if target in drop:
        raise InputError(f"drop: {target!r} is the target.")
    names = [name for name in table.names if name != target and name not in drop]
    for name in names:
        if name.startswith("Unnamed: "):
            raise InputError(
                f"{table.name}: column {int(name.split()[1]) + 1} has no name. Give it one; or, if it only numbers the "
                f"rows, leave it out: --drop '{name}'."
            )
    kinds = {name: Category if name in categorical else _kind(table, name) for name in names}
    constant = [name for name in names if _is_constant(table, name)]
    if constant and not drop_constant:
        raise InputError(
            f"{table.name}: the cells of {named(constant)} are all the same, which says nothing about {target!r}. "
            "Remove such columns, or leave them out: --drop-constant."
        )
    kept = {name: kind for name, kind in kinds.items() if name not in constant}
    if not kept:
        raise InputError(f"{table.name}: no column is left to predict {target!r} from.")
    for name in (name for name, kind in kept.items() if kind is Category):
        _check_categories(table, name)
    return kept


def _kind(table: Table, name: str) -> type[Column]:
    dtype = table.column(name).dtype
    if pd.api.types.is_bool_dtype(dtype):
        return Flag
    if isinstance(dtype, pd.CategoricalDtype):
        return Category
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return Number
    if not (pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype)):
        raise InputError(
            f"{table.name}: column {name!r} holds {dtype}. Expected numbers, texts, or true and false: turn dates and "
            f"times into numbers first, or leave the column out: --drop {name!r}."
        )
    return _kind_of_texts(table, name)


def _kind_of_texts(table: Table, name: str) -> type[Column]:
    """Numbers if all are, true and false if all are; else texts, unless most are numbers."""
    texts = table.texts(name)
    different = {text for text in texts if text is not None}
    others = {text for text in different if number(text) is None}
    if not others:
        return Number
    if all(truth(text) is not None for text in different):
        return Flag
    if 2 * len(others) < len(different):
        row = next(row for row, text in enumerate(texts) if text in others)
        raise InputError(
            f"{table.where(row, name)}: {texts[row]!r} is no number, and most other cells of the column are. Correct "
            f"it; or, if the numbers are names, --categorical {name!r}."
        )
    return Category


def _is_constant(table: Table, name: str) -> bool:
    series = table.column(name)
    if pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_bool_dtype(series.dtype):
        values = table.numbers(name)
        return len(np.unique(values[~np.isnan(values)])) < 2
    texts = {text for text in table.texts(name) if text is not None}
    values = {number(text) for text in texts}
    return len(texts) < 2 or (None not in values and len(values) < 2)


def _check_categories(table: Table, name: str) -> None:
    texts = [text for text in table.texts(name) if text is not None]
    count = len(set(texts))
    if count == len(texts) > _FEW:
        raise InputError(
            f"{table.name}: every cell of column {name!r} has a text of its own, from which nothing can be learnt. It "
            f"seems to be an id: leave it out with --drop {name!r}."
        )
    if count > MAX_CATEGORIES:
        raise InputError(
            f"{table.name}: column {name!r} has {count} different texts; expected {MAX_CATEGORIES} categories at the "
            f"most. If it is an id or free text, leave it out: --drop {name!r}."
        )
