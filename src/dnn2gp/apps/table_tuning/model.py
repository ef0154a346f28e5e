"""A tuned network as a GP together with the encoding of its table: predict data frames, save and load."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from dnn2gp.apps.table_tuning.tasks import Task, task_of
from dnn2gp.apps.table_tuning.training import Architecture
from dnn2gp.apps.tables import Encoder, Table
from dnn2gp.gp.file_format import weight_shapes
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.storage import load, save
from dnn2gp.network.mlp import ACTIVATIONS
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.files import read_regular, write_text, write_whole
from dnn2gp.support.json_text import parsed_json, short

MODEL, PREPROCESSING = "model.safetensors", "preprocessing.json"
_FORMAT = 3
_READABLE = (2, 3)
_CHECKSUM = "sha256"


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
        text = json.dumps({**state, _CHECKSUM: _checksum(state)}, indent=1, ensure_ascii=False)
        write_text(folder / PREPROCESSING, text)
        return folder / MODEL, folder / PREPROCESSING


def load_table_model(folder: str | PathLike[str]) -> TableModel:
    """Load the model that `dnn2gp tune --out folder` wrote.

    Raises:
        InputError: If there is none.
        FileFormatError: If one of its files is damaged, or the two do not belong together.
    """
    path, model = Path(folder) / PREPROCESSING, Path(folder) / MODEL
    if not path.exists():
        raise InputError(f"{path} does not exist. Give the --out folder of a finished `dnn2gp tune`.")
    state = parsed_json(read_regular(path), str(path))
    _check_format(path, state)
    encoder = _encoder(path, state)
    architecture = _architecture(path, state.get("network"))
    _check_sizes(path, architecture, model)
    sizes = (encoder.num_inputs, encoder.target.num_outputs)
    if sizes != (architecture.num_inputs, architecture.num_outputs):
        raise FileFormatError(
            f"{path}: network: expected {sizes[0]} inputs and {sizes[1]} outputs, as its columns have; got "
            f"{architecture.num_inputs} and {architecture.num_outputs}. Tune again."
        )
    return TableModel(load(model, architecture.build), encoder, architecture)


def _check_format(path: Path, state: object) -> None:
    """A format that this release reads and, since format 3, the checksum of everything else."""
    found = state.get("format") if isinstance(state, dict) else None
    if not isinstance(state, dict) or type(found) is not int or found not in _READABLE:
        raise FileFormatError(
            f"{path} has format {short(found)}; this release reads the formats {_READABLE}. Tune again."
        )
    own = {name: value for name, value in state.items() if name != _CHECKSUM}
    checksum = state.get(_CHECKSUM)
    if (checksum is not None or found >= 3) and checksum != _checksum(own):
        raise FileFormatError(
            f"{path}: {_CHECKSUM}: expected that of the file; got {short(checksum)}. The file was changed or is "
            "damaged. Tune again."
        )


def _checksum(state: dict[str, Any]) -> str:
    """The SHA-256 of the fields, whatever their order and layout."""
    return sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _encoder(path: Path, state: dict[str, Any]) -> Encoder:
    """The encoding; scikit-learn raises errors of many types for fields that are not what they must be."""
    try:
        return Encoder.from_state(state, str(path))
    except (AttributeError, IndexError, OverflowError) as error:
        raise FileFormatError(f"{path} does not describe the encoding of a table ({error!r}). Tune again.") from error


def _architecture(path: Path, value: object) -> Architecture:
    """The network, if its sizes are integers and its activation is known."""
    names = {field.name for field in fields(Architecture)}
    own = value if isinstance(value, dict) else {}
    sizes = [size for name, size in own.items() if name != "activation"]
    whole = all(type(size) is int and 0 <= size < 2**31 for size in sizes)
    if set(own) != names or not whole or own["activation"] not in list(ACTIVATIONS):
        raise FileFormatError(f"{path} does not describe a network (network = {short(value)}). Tune again.")
    return Architecture(**own)


def _check_sizes(path: Path, architecture: Architecture, model: Path) -> None:
    """Refuse a network that is not the saved one, before it is built."""
    saved = weight_shapes(model)
    if 2 * (architecture.depth + 1) != len(saved) or architecture.shapes() != saved:
        raise FileFormatError(
            f"{path}: network: expected the network of {MODEL}, which has {len(saved)} weight tensors; got "
            f"{architecture}. Tune again."
        )


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
