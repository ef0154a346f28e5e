"""A tuned network as a GP together with the encoding of its table: predict data frames, save and load."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path

import pandas as pd
import torch

from dnn2gp.apps.table_tuning.tasks import Task, task_of
from dnn2gp.apps.table_tuning.training import Architecture
from dnn2gp.apps.tables import Encoder, Table
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.storage import load, save
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.files import write_text, write_whole

MODEL, PREPROCESSING = "model.safetensors", "preprocessing.json"
_FORMAT = 2


@dataclass(frozen=True, eq=False)
class TableModel:
    """A GP that predicts the rows of a table."""

    gp: GaussianProcess
    encoder: Encoder
    architecture: Architecture

    @property
    def task(self) -> Task:
        """Regression or classification."""
        return task_of(self.encoder.target)

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Predict all rows, in the units of the target and with the index of `frame`; other columns are ignored.

        Returns:
            For regression: mean, std (including noise), epistemic_std, and the bounds lower and upper of the central
            90 % interval. For classification: the most probable class, and one column p_… per class.
        """
        if not isinstance(frame, pd.DataFrame):
            raise InputError(f"predict: expected a pandas DataFrame; got {type(frame).__name__}.")
        return self.predict_table(Table(frame, "the frame")).set_index(frame.index)

    def predict_table(self, table: Table) -> pd.DataFrame:
        """Predict the rows of a table that was read from a file."""
        return self.task.frame(self.gp.predict(torch.from_numpy(self.encoder.inputs(table))))

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write model.safetensors and preprocessing.json."""
        state = {
            "format": _FORMAT,
            "dnn2gp": version("dnn2gp"),
            "network": asdict(self.architecture),
            **self.encoder.state(),
        }
        save(self.gp, folder / MODEL)
        write_text(folder / PREPROCESSING, json.dumps(state, indent=1, ensure_ascii=False))
        return folder / MODEL, folder / PREPROCESSING


def load_table_model(folder: str | PathLike[str]) -> TableModel:
    """Load the model that `dnn2gp tune --out folder` wrote."""
    path = Path(folder) / PREPROCESSING
    if not path.exists():
        raise InputError(f"{path} does not exist. Give the --out folder of a finished `dnn2gp tune`.")
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileFormatError(f"{path} is not a JSON file ({error}). Tune again.") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise FileFormatError(f"{path} does not have format {_FORMAT}, which this release reads. Tune again.")
    encoder = Encoder.from_state(state, str(path))
    try:
        architecture = Architecture(**state["network"])
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{path} does not describe a network ({error!r}). Tune again.") from error
    return TableModel(load(Path(folder) / MODEL, architecture.build), encoder, architecture)


def write_predictions(table: Table, predictions: pd.DataFrame, path: Path) -> None:
    """Write the columns of the table and the predictions as CSV; a name that is taken is prefixed with `predicted_`."""
    taken, names = set(table.names), []
    for name in predictions.columns:
        while name in taken:
            name = f"predicted_{name}"
        names.append(name)
        taken.add(name)
    both = pd.concat([table.frame.reset_index(drop=True), predictions.set_axis(names, axis=1)], axis=1)
    write_whole(path, partial(both.to_csv, index=False))
