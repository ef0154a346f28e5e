"""A table as the inputs and targets of a network, encoded by scikit-learn, and the encoding as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dnn2gp.apps.tables.columns import Columns, Target, target_from_state
from dnn2gp.apps.tables.table import Table, named
from dnn2gp.support.errors import FileFormatError, InputError

_NUMERIC, _CATEGORICAL = "numeric", "categorical"
_KINDS = ("number", "date", "category")


@dataclass(frozen=True, eq=False)
class Encoder:
    """Numeric columns and dates, as days, standardised, categorical columns one-hot encoded, and the target.

    A category with two values, such as true and false, becomes one input.
    """

    columns: Columns
    target: Target
    transformer: ColumnTransformer
    impute: bool
    """Whether missing cells are filled (by the median or the most frequent category) instead of raising an error."""

    @staticmethod
    def fit(table: Table, columns: Columns, target: Target, rows: np.ndarray, *, impute: bool = False) -> Encoder:
        """Fit means, scales, medians and frequencies to some rows; the categories are those of the whole table."""
        encoder = Encoder(columns, target, _transformer(columns), impute)
        frame = encoder._frame(table).iloc[rows]
        empty = [name for name in columns.names if frame[name].isna().all()]
        if empty:
            raise InputError(f"{table.name}: no training row has a value in {named(empty)}. Leave it out with --drop.")
        encoder.transformer.fit(frame)
        return encoder

    @property
    def num_inputs(self) -> int:
        """The number of inputs of the network."""
        return len(self.transformer.get_feature_names_out())

    def inputs(self, table: Table) -> np.ndarray:
        """The inputs of all rows, N × num_inputs.

        Raises:
            InputError: If a column is absent, or a cell is missing (without `impute`), not a number, or a new category.
        """
        absent = [name for name in self.columns.names if name not in table.frame.columns]
        if absent:
            raise InputError(
                f"{table.name} lacks the column{'s' if len(absent) > 1 else ''} {named(absent)}, which the model "
                "predicts from. Add what is missing, under the same name."
            )
        if not len(table):
            raise InputError(f"{table.name} has no rows.")
        return np.asarray(self.transformer.transform(self._frame(table)), dtype=np.float64)

    def targets(self, table: Table) -> np.ndarray:
        """The encoded targets of all rows."""
        return self.target.encode(table)

    def state(self) -> dict[str, Any]:
        """The fitted encoding, as JSON takes it: one record per column."""
        fitted = self.transformer.named_transformers_
        records: list[dict[str, Any]] = []
        if self.columns.numbers:
            imputer, scaler = (step for _, step in fitted[_NUMERIC].steps)
            values = np.stack([imputer.statistics_, scaler.mean_, scaler.scale_], axis=1).tolist()
            for name, (fill, mean, scale) in zip(self.columns.numbers, values, strict=True):
                kind = "date" if name in self.columns.dates else "number"
                records.append({"name": name, "kind": kind, "fill": fill, "mean": mean, "scale": scale})
        if self.columns.categories:
            fills = fitted[_CATEGORICAL].steps[0][1].statistics_
            for (name, categories), fill in zip(self.columns.categories.items(), fills, strict=True):
                records.append({"name": name, "kind": "category", "fill": fill, "categories": list(categories)})
        return {"impute": self.impute, "target": self.target.state(), "columns": records}

    @staticmethod
    def from_state(state: object, where: str = "the state") -> Encoder:
        """The inverse of `state`: refitted to one row of the fill values, then given the means and scales."""
        try:
            if not isinstance(state, Mapping):
                raise TypeError("not a mapping")
            records = {kind: [own for own in state["columns"] if own["kind"] == kind] for kind in _KINDS}
            others = records["category"]
            columns = Columns(
                tuple(own["name"] for own in records["number"]),
                {own["name"]: tuple(own["categories"]) for own in others},
                tuple(own["name"] for own in records["date"]),
            )
            numbers = [*records["number"], *records["date"]]
            if not columns.names or len(columns.names) != len(state["columns"]):
                raise KeyError("columns")
            transformer = _transformer(columns)
            transformer.fit(pd.DataFrame({own["name"]: [own["fill"]] for own in (*numbers, *others)}))
            if numbers:
                scaler = transformer.named_transformers_[_NUMERIC].steps[1][1]
                scaler.mean_ = np.array([own["mean"] for own in numbers], dtype=np.float64)
                scaler.scale_ = np.array([own["scale"] for own in numbers], dtype=np.float64)
                scaler.var_ = scaler.scale_**2
            return Encoder(columns, target_from_state(state["target"]), transformer, bool(state["impute"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"{where} does not describe the encoding of a table ({error!r}). Tune again."
            ) from error

    def _frame(self, table: Table) -> pd.DataFrame:
        """The columns as scikit-learn takes them, every cell checked."""
        found: dict[str, pd.Series] = {name: pd.Series(table.numbers(name)) for name in self.columns.numeric}
        found |= {name: pd.Series(table.days(name)) for name in self.columns.dates}
        for name, categories in self.columns.categories.items():
            found[name] = table.texts(name)
            unknown = (found[name].notna() & ~found[name].isin(categories)).to_numpy()
            known = ", ".join(categories[:8]) + (", …" if len(categories) > 8 else "")
            table.refuse(
                name,
                unknown,
                f"not one of the {len(categories)} categories that the model knows ({known}). Correct the cell, or "
                "tune again with rows that have it.",
            )
        frame = pd.DataFrame(found)
        if not self.impute:
            _check_missing(table, frame)
        return frame


def _transformer(columns: Columns) -> ColumnTransformer:
    numeric = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    categories = [np.array(own, dtype=object) for own in columns.categories.values()]
    categorical = make_pipeline(
        SimpleImputer(strategy="most_frequent"),
        OneHotEncoder(categories=categories, drop="if_binary", sparse_output=False),  # type: ignore[arg-type]
    )
    groups = [(_NUMERIC, numeric, list(columns.numbers)), (_CATEGORICAL, categorical, list(columns.categories))]
    return ColumnTransformer([group for group in groups if group[2]])


def _check_missing(table: Table, frame: pd.DataFrame) -> None:
    missing = frame.isna()
    rows, count = missing.any(axis=1).to_numpy(), int(missing.to_numpy().sum())
    if not count:
        return
    row = int(np.flatnonzero(rows)[0])
    name = str(missing.columns[missing.iloc[row]][0])
    affected = [str(each) for each in missing.columns[missing.any()]]
    more = f" ({count} cells are missing in total, in {named(affected)})" if count > 1 else ""
    raise InputError(
        f"{table.where(row, name)}: the value is missing{more}. Fill it in, remove the row, or tune with --impute, "
        "which fills in the median of a numeric column and the most frequent category of others."
    )
