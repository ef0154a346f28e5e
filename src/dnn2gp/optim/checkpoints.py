"""Checkpoints of a training run: a tree of dicts, lists, numbers, strings and tensors in a safetensors file, no pickle.

save_checkpoint("run.safetensors", {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3})
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from dnn2gp.network.inputs import all_finite
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.files import as_path
from dnn2gp.support.json_text import MAX_DEPTH, MAX_DIGITS, parsed_json, short
from dnn2gp.support.memory import default_budget
from dnn2gp.support.tensor_file import CHECKSUMS, TensorFile, damaged, write_tensors
from dnn2gp.weights.online_newton import State

_SETTINGS = ("num_data", "temperature")
_CUDA_GENERATOR = 16  # bytes: a seed and an offset
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
    if own["method"] != method:
        raise FileFormatError(f"load_state_dict: expected the state of {method}; got that of {own['method']}.")
    _check_tensor("precision", own["precision"], expected)
    _check_tensor("momentum", own["momentum"], now.momentum)
    _check_numbers(own)
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


def _check_tensor(name: str, found: object, like: Tensor) -> None:
    """A finite floating-point tensor of the same shape."""
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.shape != like.shape:
        got = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else short(found)
        raise FileFormatError(
            f"load_state_dict: {name}: expected a floating-point tensor of shape {tuple(like.shape)}; got {got}. "
            "Create the optimizer for the network of that run."
        )
    if not all_finite(found):
        raise FileFormatError(f"load_state_dict: {name}: expected finite numbers; got NaN or infinity.")


def _check_numbers(own: dict[str, Any]) -> None:
    """The weight of the momentum, the number of steps, and the state of the generator."""
    weight, step, generator = own["momentum_weight"], own["step"], own["generator"]
    if type(weight) not in (int, float) or not -inf < weight < inf:
        raise FileFormatError(f"load_state_dict: momentum_weight: expected a number; got {short(weight)}.")
    if type(step) is not int or not 0 <= step < 2**63:
        raise FileFormatError(f"load_state_dict: step: expected a number of steps; got {short(step)}.")
    try:
        if not isinstance(generator, Tensor) or generator.ndim != 1:
            raise TypeError(type(generator).__name__)
        if generator.numel() != _CUDA_GENERATOR:
            torch.Generator().set_state(generator.cpu())
    except (RuntimeError, TypeError) as error:
        raise FileFormatError(
            f"load_state_dict: generator: expected the state of one; got another ({error})."
        ) from error


def precision_values(state: State) -> Tensor:
    """The one tensor that defines Σ_t⁻¹: P numbers, or P × P."""
    (values,) = state.precision.state().values()
    return values


_KEY, _TENSOR, _PAIRS, _TUPLE = "dnn2gp_checkpoint", "__tensor__", "__pairs__", "__tuple__"
_FORMAT = 2


def save_checkpoint(path: str | PathLike[str], tree: dict[str, Any]) -> None:
    """Write the tree atomically: if the process is killed, the previous checkpoint is still there."""
    if not isinstance(tree, dict):
        raise InputError(f"checkpoint: expected a dict; got {type(tree).__name__}.")
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_packed(tree, tensors, "checkpoint", 0))
    # The text is stored as a tensor, because the header of a safetensors file is limited in size.
    tensors[_KEY] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    write_tensors(as_path(path), _KEY, {"format": _FORMAT}, tensors)


def load_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint written by `save_checkpoint`.

    Raises:
        FileFormatError: If it is damaged or another file; the message names the entry.
        MemoryBudgetError: If it is larger than the memory that is free.
    """
    path = as_path(path)
    with TensorFile.open(path, _KEY, 2 * default_budget()) as file:
        _check_format(file)
        text = _bytes_of(file)
        tree = parsed_json(text, f"{path}: {_KEY!r}")
        tensors = {name: file.read(name) for name in file.entries if name != _KEY}
    found = _Tree(path, tensors).unpacked(tree, "checkpoint")
    if not isinstance(found, dict):
        raise damaged(path, _KEY, "a dict", type(found).__name__)
    return found


def _check_format(file: TensorFile) -> None:
    """Format 1 has no header, and no checksums."""
    known = {"format", CHECKSUMS} if file.has_checksums else set()
    version = file.header.get("format", 1)
    if set(file.header) != known or type(version) is not int or version != (_FORMAT if file.has_checksums else 1):
        raise damaged(file.path, "format", f"1 or {_FORMAT}", short(version))


def _bytes_of(file: TensorFile) -> bytes:
    """The text of the tree."""
    entry = file.entries.get(_KEY)
    if entry is None or entry.dtype != torch.uint8 or len(entry.shape) != 1:
        raise damaged(file.path, _KEY, "the text of a checkpoint", "no such tensor" if entry is None else str(entry))
    return file.read(_KEY).numpy().tobytes()


def _packed(value: Any, tensors: dict[str, Tensor], where: str, depth: int) -> Any:
    """The value as JSON, with its tensors moved to `tensors`."""
    if depth > MAX_DEPTH // 3:  # a level of the tree is at most three levels of JSON
        raise InputError(f"{where}: expected at most {MAX_DEPTH // 3} levels of dicts and lists. Flatten the tree.")
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, dict):
        members = [(key, _packed(own, tensors, f"{where}[{key!r}]", depth + 1)) for key, own in value.items()]
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return dict(members)
        return {_PAIRS: [[_key(key, where), own] for key, own in members]}
    if isinstance(value, list | tuple):
        members = [_packed(member, tensors, f"{where}[{i}]", depth + 1) for i, member in enumerate(value)]
        return {_TUPLE: members} if isinstance(value, tuple) else members
    if isinstance(value, int) and value.bit_length() > 3 * MAX_DIGITS:
        raise InputError(f"{where}: expected an integer of at most {3 * MAX_DIGITS} bits; got {value.bit_length()}.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        f"{where}: expected tensors, numbers, strings, None, and dicts, lists and tuples of these; got "
        f"{type(value).__name__}. A checkpoint cannot hold code or other objects."
    )


def _key(key: object, where: str) -> object:
    """A key of a dict that JSON can hold."""
    if key is None or isinstance(key, bool | int | float | str):
        return key
    raise InputError(f"{where}: expected keys that are numbers, strings or None; got {type(key).__name__}.")


@final
@dataclass(frozen=True)
class _Tree:
    """The inverse of `_packed`, for the text and the tensors of a file."""

    path: Path
    tensors: dict[str, Tensor]

    def unpacked(self, value: Any, where: str) -> Any:
        """The value of one node of the tree."""
        if isinstance(value, list):
            return [self.unpacked(member, f"{where}[{i}]") for i, member in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if set(value) == {_TENSOR}:
            return self._tensor(value[_TENSOR], where)
        if set(value) == {_TUPLE} and isinstance(value[_TUPLE], list):
            return tuple(self.unpacked(member, f"{where}[{i}]") for i, member in enumerate(value[_TUPLE]))
        if set(value) == {_PAIRS} and isinstance(value[_PAIRS], list):
            return dict(self._pair(member, where) for member in value[_PAIRS])
        if any(key.startswith("__") for key in value):
            raise damaged(self.path, where, "plain keys", short(list(value)))
        return {key: self.unpacked(member, f"{where}[{key!r}]") for key, member in value.items()}

    def _tensor(self, name: object, where: str) -> Tensor:
        if not isinstance(name, str) or name not in self.tensors:
            raise damaged(self.path, where, "a tensor of the file", short(name))
        return self.tensors[name]

    def _pair(self, member: object, where: str) -> tuple[Any, Any]:
        if not isinstance(member, list) or len(member) != 2 or isinstance(member[0], list | dict):
            raise damaged(self.path, where, "a key and its value", short(member))
        return member[0], self.unpacked(member[1], f"{where}[{short(member[0])}]")
