"""The columns of a table: numbers, dates, categories or rejected; and the target, a number or a class."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, final

import numpy as np
import pandas as pd
from sklearn.preprocessing import StandardScaler

from dnn2gp.apps.tables.dates import days, like_dates
from dnn2gp.apps.tables.table import Table, as_numbers, named
from dnn2gp.support.errors import InputError

MAX_CATEGORIES = 100
"""A text column with more different values than this is an id or free text."""
# In a table with more rows than this, text that never repeats is an id, and so are whole numbers with such a name.
_FEW = 10
_NAMES_OF_IDS = re.compile(
    r"(?i:id|index|key|row|nr|no\.?|#|(row|record|line)[ _]?(number|nr|no)|.*[ _]id)|.*[a-z]I[dD]"
)
_UNNAMED = re.compile(r"Unnamed: (\d+)")


@dataclass(frozen=True)
class Columns:
    """The columns that the target is predicted from, by their kind."""

    numeric: tuple[str, ...]
    categories: dict[str, tuple[str, ...]]
    """Categorical column → its categories in the whole table."""
    dates: tuple[str, ...] = ()
    """The columns of dates, which are encoded as days."""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, the numeric ones first."""
        return (*self.numbers, *self.categories)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that become one number each."""
        return (*self.numeric, *self.dates)


def choose_columns(
    table: Table,
    target: str,
    *,
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    drop_constant: bool = False,
) -> Columns:
    """Find the kind of every column that the target is predicted from.

    Args:
        table: The user's table.
        target: The column to predict.
        categorical: Numeric columns to treat as categories, such as codes.
        drop: Columns to leave out.
        drop_constant: Leave out columns in which all cells are the same; otherwise they raise an error.

    Raises:
        InputError: For a column that says nothing (constant, an id, free text), has no name, or holds dates that can
            be read in several ways.
    """
    for name in (target, *categorical, *drop):
        table.column(name)
    if target in drop:
        raise InputError(f"drop: {target!r} is the target, which cannot be dropped.")
    names = [name for name in table.names if name != target and name not in drop]
    _check_named(table, names)
    dates = [name for name in names if name not in categorical and _is_date(table, name)]
    numeric = [name for name in names if name not in (*categorical, *dates) and _is_numeric(table, name)]
    for name in numeric:
        _check_no_id(table, name)
    constant = [name for name in names if _is_constant(table, name, name in numeric)]
    if constant and not drop_constant:
        raise InputError(
            f"{table.name}: all cells of {named(constant)} are the same, which says nothing about {target!r}. Remove "
            "the column, or leave out all constant columns with --drop-constant."
        )
    kept = [name for name in names if name not in constant]
    if not kept:
        raise InputError(f"{table.name}: no columns are left to predict {target!r} from.")
    return Columns(
        numeric=tuple(name for name in kept if name in numeric),
        categories={name: _categories(table, name) for name in kept if name not in (*numeric, *dates)},
        dates=tuple(name for name in kept if name in dates),
    )


def numbers_the_rows(table: Table, name: str) -> bool:
    """Whether a numeric column holds every whole number of a range exactly once, as an id does, or a year."""
    values = np.sort(table.numbers(name))
    return len(values) > _FEW and bool((np.diff(values) == 1).all())


def _check_no_id(table: Table, name: str) -> None:
    if len(table) <= _FEW or not _NAMES_OF_IDS.fullmatch(name):
        return
    values = table.numbers(name)
    known = values[~np.isnan(values)]
    if len(np.unique(known)) == len(known) and (known == np.round(known)).all():
        raise InputError(
            f"{table.name}: column {name!r}: expected a quantity; got a different whole number in every row, under the "
            f"name of an id. Leave it out with --drop {name!r}; or, if it is a quantity, rename the column."
        )


def _is_date(table: Table, name: str) -> bool:
    """Whether a column holds dates; cells that are none, and dates that are not clear, are refused."""
    dtype = table.column(name).dtype
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return True
    if not (pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype)):
        return False
    different = table.texts(name).dropna().drop_duplicates()
    clear = ~np.isnan(days(different))
    if clear.any() and 2 * clear.sum() > len(different):
        table.days(name)
        return True
    unclear = like_dates(different)
    if unclear.any() and 2 * unclear.sum() > len(different):
        example = different.tolist()[int(unclear.argmax())]
        raise InputError(
            f"{table.name}: column {name!r}: expected dates such as 2024-03-31; got {example!r}, "
            f"which can be read in several ways. Write them as year-month-day; or leave the column out with --drop "
            f"{name!r}, or take each date for a category with --categorical {name!r}."
        )
    return False


def _check_named(table: Table, names: Sequence[str]) -> None:
    for name in names:
        found = _UNNAMED.fullmatch(name)
        if found is not None:
            raise InputError(
                f"{table.name}: column {int(found[1]) + 1} has no name. Name it; or, if it only numbers the "
                f"rows, leave it out with --drop '{name}'."
            )


def _is_numeric(table: Table, name: str) -> bool:
    dtype = table.column(name).dtype
    if pd.api.types.is_bool_dtype(dtype) or isinstance(dtype, pd.CategoricalDtype):
        return False
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return True
    if not (pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype)):
        raise InputError(
            f"{table.name}: column {name!r}: expected numbers, text, dates, or true and false; got {dtype}. Convert "
            f"it to numbers first, or leave the column out with --drop {name!r}."
        )
    texts = table.texts(name)
    different = texts.dropna().drop_duplicates()
    other = np.isnan(as_numbers(different))
    if other.any() and 2 * other.sum() < len(different):
        bad = np.isnan(as_numbers(texts)) & texts.notna().to_numpy()
        table.refuse(
            name,
            bad,
            "expected a number, like most other cells of the column. Correct it; or, if the numbers are names, use "
            f"--categorical {name!r}.",
        )
    return not other.any()


def _is_constant(table: Table, name: str, numeric: bool) -> bool:
    values = pd.Series(table.numbers(name)) if numeric else table.texts(name)
    return values.nunique() < 2


def _categories(table: Table, name: str) -> tuple[str, ...]:
    texts = table.texts(name).dropna()
    count = texts.nunique()
    if count == len(texts) > _FEW:
        raise InputError(
            f"{table.name}: every cell of column {name!r} has a different text, from which nothing can be learned. "
            f"If it is an id, leave it out with --drop {name!r}."
        )
    if count > MAX_CATEGORIES:
        raise InputError(
            f"{table.name}: column {name!r} has {count} different texts; expected at most {MAX_CATEGORIES} categories. "
            f"If it is an id or free text, leave it out with --drop {name!r}."
        )
    return tuple(sorted(texts.unique()))


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
        return  # complex numbers are refused when they are read
    different = table.texts(name).dropna().drop_duplicates()
    others = different[np.isnan(as_numbers(different))].tolist()
    if 2 * len(others) < len(different):
        return  # a few cells that are not numbers are reported by their position
    raise InputError(
        f"{table.name}: the target {name!r} holds text ({named(others)}), but a regression predicts numbers. To "
        "predict which text it is, use --task classification."
    )


def _check_present(table: Table, name: str, missing: np.ndarray) -> None:
    count = f" in {missing.sum()} rows" if missing.sum() > 1 else ""
    words = f"the target is missing{count}. Remove rows without a target, or predict them with --predict."
    table.refuse(name, missing, words)
