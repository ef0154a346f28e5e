"""A table as the tensors of a training, and how it was made so, to do the same with other rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnn2gp.apps.tables.columns import KINDS, Column
from dnn2gp.apps.tables.table import Table, named
from dnn2gp.apps.tables.targets import TASKS, Target
from dnn2gp.support.errors import FileFormatError, InputError


@dataclass(frozen=True)
class Encoder:
    """The columns that are inputs, in their order, and the target."""

    columns: tuple[Column, ...]
    target: Target

    @staticmethod
    def fit(
        table: Table,
        kinds: Mapping[str, type[Column]],
        target: str,
        task: type[Target],
        rows: np.ndarray | None = None,
        *,
        impute: bool = False,
    ) -> Encoder:
        """With means, deviations, medians and frequencies of these rows (all, if none are given).

        Cells that are missing are refused, or with `impute` filled: numbers by their median, others by the most
        frequent one.
        """
        rows = np.arange(len(table)) if rows is None else rows
        known = task.fit(table, target, rows)
        if not impute:
            _check_missing(table, kinds)
        return Encoder(tuple(kind.fit(table, name, rows, impute) for name, kind in kinds.items()), known)

    @property
    def num_inputs(self) -> int:
        """Of the network."""
        return sum(column.num_inputs for column in self.columns)

    def inputs(self, table: Table) -> np.ndarray:
        """The inputs of all rows, N × num_inputs."""
        absent = [column.name for column in self.columns if column.name not in table.frame.columns]
        if absent:
            raise InputError(
                f"{table.name} lacks the column{'s' if len(absent) > 1 else ''} {named(absent)}, which the model "
                "predicts from. Add what is missing, under the same name."
            )
        if not len(table):
            raise InputError(f"{table.name} has no rows.")
        _check_missing(table, {column.name: type(column) for column in self.columns if not column.fills})
        return np.concatenate([column.encode(table) for column in self.columns], axis=1)

    def targets(self, table: Table) -> np.ndarray:
        """The targets of all rows."""
        return self.target.encode(table)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return {"target": self.target.state(), "columns": [column.state() for column in self.columns]}

    @staticmethod
    def from_state(state: object, where: str = "the state") -> Encoder:
        """The inverse of `state`."""
        try:
            if not isinstance(state, Mapping):
                raise TypeError("no mapping")
            columns = tuple(_made(KINDS[own["kind"]], own, "kind") for own in state["columns"])
            return Encoder(columns, _made(TASKS[state["target"]["task"]], state["target"], "task"))
        except (KeyError, TypeError) as error:
            raise FileFormatError(f"{where} does not say how to encode a table ({error!r}). Tune again.") from error


def _made(kind: type, state: Mapping[str, Any], tag: str) -> Any:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in state.items() if name != tag}
    return kind(**values)


def _check_missing(table: Table, kinds: Mapping[str, type[Column]]) -> None:
    missing = {name: rows for name, kind in kinds.items() if len(rows := kind.missing(table, name))}
    if not missing:
        return
    name, rows = min(missing.items(), key=lambda item: item[1][0])
    count = sum(len(rows) for rows in missing.values())
    more = f" ({count} cells are missing in all, in {named(list(missing))})" if count > 1 else ""
    raise InputError(
        f"{table.where(int(rows[0]), name)}: the value is missing{more}. Fill it, remove the row, or tune with "
        "--impute, which fills in the median of a number and the most frequent of other columns."
    )
