"""Checkpoints of a training run: a tree of dicts, lists, numbers, strings and tensors in a safetensors file, no pickle.

save_checkpoint("run.safetensors", {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3})
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.files import write_whole
from dnn2gp.weights.online_newton import State

_SETTINGS = ("num_data", "temperature")
_HELD = {"method", *_SETTINGS, "step", "precision", "momentum", "momentum_weight", "generator"}


def packed(state: State, method: str, num_data: int, temperature: float, generator: torch.Generator) -> dict[str, Any]:
    """q_t except for its mean, which the network's own state_dict holds."""
    return {
        "method": method,
        "num_data": num_data,
        "temperature": temperature,
        "step": state.step,
        "precision": precision_values(state).clone(),
        "momentum": state.momentum.clone(),
        "momentum_weight": state.momentum_weight,
        "generator": generator.get_state(),
    }


def unpacked(own: Any, now: State, method: str, num_data: int, temperature: float) -> State:
    """The inverse of `packed`, with the mean, dtype and device of the current state `now`."""
    if not isinstance(own, dict) or set(own) != _HELD:
        raise FileFormatError(
            f"load_state_dict: expected a state returned by {method}.state_dict(); got something else."
        )
    expected = precision_values(now)
    if own["method"] != method or own["precision"].shape != expected.shape:
        raise FileFormatError(
            f"load_state_dict: expected the state of {method} with a precision of shape {tuple(expected.shape)}; got "
            f"that of {own['method']} with {tuple(own['precision'].shape)}."
        )
    for name, value in zip(_SETTINGS, (num_data, temperature), strict=True):
        if own[name] != value:
            raise FileFormatError(
                f"load_state_dict: expected the state of a training run with {name} = {value}; got one with "
                f"{own[name]}. Create the optimizer with the settings of that run."
            )
    return State(
        now.mean,
        type(now.precision)(own["precision"].to(expected, copy=True)),
        own["momentum"].to(now.momentum, copy=True),
        float(own["momentum_weight"]),
        int(own["step"]),
    )


def precision_values(state: State) -> Tensor:
    """The one tensor that defines Σ_t⁻¹: P numbers, or P × P."""
    (values,) = state.precision.state().values()
    return values


_KEY, _TENSOR, _PAIRS, _TUPLE = "dnn2gp_checkpoint", "__tensor__", "__pairs__", "__tuple__"


def save_checkpoint(path: str | PathLike[str], tree: dict[str, Any]) -> None:
    """Write the tree atomically: if the process is killed, the previous checkpoint is still there."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_packed(tree, tensors, "checkpoint"))
    # The text is stored as a tensor, because the header of a safetensors file is limited in size.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    own[_KEY] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).clone()

    def write(place: Path) -> None:
        try:
            save_file(own, place)
        except SafetensorError as error:
            raise OSError(f"Could not write {path}: {error}. An existing file of that name is unchanged.") from error

    write_whole(Path(path), write)


def load_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint written by `save_checkpoint`."""
    try:
        tensors = load(Path(path).read_bytes())  # in one read, because a training run may replace the file meanwhile
        text = bytes(tensors.pop(_KEY).tolist()).decode()
        return _unpacked(json.loads(text), tensors)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise FileFormatError(
            f"{path} is not a complete dnn2gp checkpoint ({error}). Pass a file written by save_checkpoint."
        ) from error


def _packed(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {key: _packed(member, tensors, f"{where}[{key!r}]") for key, member in value.items()}
        return {_PAIRS: [[key, _packed(member, tensors, f"{where}[{key!r}]")] for key, member in value.items()]}
    if isinstance(value, list | tuple):
        members = [_packed(member, tensors, f"{where}[{i}]") for i, member in enumerate(value)]
        return {_TUPLE: members} if isinstance(value, tuple) else members
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        f"{where}: expected tensors, numbers, strings, None, and dicts, lists and tuples of these; got "
        f"{type(value).__name__}. A checkpoint cannot hold code or other objects."
    )


def _unpacked(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(member, tensors) for member in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_TENSOR}:
        return tensors[value[_TENSOR]]
    if set(value) == {_TUPLE}:
        return tuple(_unpacked(member, tensors) for member in value[_TUPLE])
    if set(value) == {_PAIRS}:
        return {key: _unpacked(member, tensors) for key, member in value[_PAIRS]}
    return {key: _unpacked(member, tensors) for key, member in value.items()}
