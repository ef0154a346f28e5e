"""The learning problem that a table poses: its training rows, its test rows, and its columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

from dnn2gp.apps.table_tuning.config import TableTuningConfig
from dnn2gp.apps.tables import TASKS, Columns, Encoder, Table, Target, choose_columns, read_table
from dnn2gp.support.errors import InputError

USUAL_WIDTHS = (2, 5, 10, 20, 50)
# The most weights of a network of the usual widths, and of widths that the user asks for.
_USUAL_WEIGHTS, _MOST_WEIGHTS = 1200, 5000
_FEWEST_ROWS, _FEWEST_TO_TRAIN = 5, 3


@dataclass(frozen=True, eq=False)
class TableRows:
    """Encoded rows."""

    inputs: Tensor
    """N × D, float64."""
    targets: Tensor
    """N × 1, float64; or N class indices."""

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class TableProblem:
    """A table, the columns that are used, and the rows that are held out."""

    table: Table
    target: str
    task: type[Target]
    columns: Columns
    impute: bool
    training: np.ndarray
    """The training rows."""
    held_out: np.ndarray
    """The test rows; possibly none."""
    dropped: tuple[str, ...] = ()
    """The columns that the user left out."""

    @staticmethod
    def of(config: TableTuningConfig) -> TableProblem:
        """Read the table, check it, and hold out random rows."""
        table, target = _table(config)
        _check_rows(table)
        columns = choose_columns(
            table,
            target,
            categorical=config.categorical,
            drop=config.drop,
            drop_constant=config.drop_constant,
        )
        task = TASKS[config.task]
        everything = np.arange(len(table))
        problem = TableProblem(table, target, task, columns, config.impute, everything, everything[:0])
        known = problem.encoder(everything)  # this checks every cell
        training, held_out = _split(known.targets(table), config.test_share, config.seed)
        return TableProblem(table, target, task, columns, config.impute, training, held_out, config.drop)

    def encoder(self, rows: np.ndarray | None = None) -> Encoder:
        """The encoder fitted to the given rows, by default all."""
        rows = np.arange(len(self.table)) if rows is None else rows
        target = self.task.fit(self.table, self.target, rows)
        return Encoder.fit(self.table, self.columns, target, rows, impute=self.impute)

    def rows(self, encoder: Encoder, which: np.ndarray | None = None) -> TableRows:
        """The given rows, by default all, encoded."""
        inputs, targets = encoder.inputs(self.table), encoder.targets(self.table)
        chosen = np.arange(len(self.table)) if which is None else which
        return TableRows(torch.from_numpy(inputs[chosen]), torch.from_numpy(targets[chosen]))

    def digest(self) -> str:
        """A hash of the encoded training and test rows and of the encoding."""
        encoder = self.encoder(self.training)
        found = hashlib.sha256(json.dumps(encoder.state(), sort_keys=True).encode())
        for which in (self.training, self.held_out):
            rows = self.rows(encoder, which)
            found.update(rows.inputs.numpy().tobytes() + rows.targets.numpy().tobytes())
        return found.hexdigest()


def num_weights(num_inputs: int, num_outputs: int, width: int, depth: int) -> int:
    """The number of weights and biases of a network with `depth` hidden layers of `width` units."""
    return (num_inputs + 1) * width + (depth - 1) * (width + 1) * width + (width + 1) * num_outputs


def widths_of(config: TableTuningConfig, num_inputs: int, num_outputs: int) -> tuple[tuple[int, ...], Sequence[int]]:
    """The widths to try, and the usual widths that are left out because they make too many weights."""

    def weights(width: int) -> int:
        return num_weights(num_inputs, num_outputs, width, max(config.depths))

    if config.widths is None:
        kept = tuple(width for width in USUAL_WIDTHS if weights(width) <= _USUAL_WEIGHTS) or USUAL_WIDTHS[:1]
    else:
        kept = config.widths
    largest = max(kept)
    if weights(largest) > _MOST_WEIGHTS:
        raise InputError(
            f"width: expected a network with at most {_MOST_WEIGHTS:,} weights; got {weights(largest):,} weights, "
            f"from {largest} hidden units, {num_inputs} inputs and depth {max(config.depths)}. Use a smaller --width "
            "or --depth, or --drop columns with many categories."
        )
    return kept, [width for width in USUAL_WIDTHS if config.widths is None and width not in kept]


def _table(config: TableTuningConfig) -> tuple[Table, str]:
    if config.data is None:
        frame = load_diabetes(as_frame=True, scaled=False).frame  # pyright: ignore[reportAttributeAccessIssue]
        table = Table(frame, "scikit-learn's diabetes data")
    else:
        table = read_table(config.data)
    if config.target is None and config.data is not None:
        raise InputError(
            f"target: expected the column to predict; got none. Give --target, one of: {', '.join(table.names)}."
        )
    table = table if config.max_rows is None else table.first(config.max_rows)
    return table, "target" if config.target is None else config.target


def _check_rows(table: Table) -> None:
    if len(table) < _FEWEST_ROWS:
        count = f"{len(table)} row{'' if len(table) == 1 else 's'}"
        raise InputError(
            f"{table.name} has {count}; expected at least {_FEWEST_ROWS}, because columns are standardised and some "
            "rows are held out."
        )


def _split(targets: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random training and test rows; the test rows have the same share of each class, and never a whole class."""
    generator = np.random.default_rng(seed)
    groups = [np.arange(len(targets))]
    if targets.ndim == 1:
        groups = [np.flatnonzero(targets == label) for label in np.unique(targets)]
    held = [generator.permutation(group)[: min(round(share * len(group)), len(group) - 1)] for group in groups]
    held_out = np.sort(np.concatenate(held))
    training = np.setdiff1d(np.arange(len(targets)), held_out)
    if len(training) < _FEWEST_TO_TRAIN or (share > 0 and not len(held_out)):
        raise InputError(
            f"test-share: a share of {share:g} of {len(targets)} rows leaves {len(training)} training rows and "
            f"{len(held_out)} test rows. Change --test-share (0: no test rows), or add rows."
        )
    return training, held_out
