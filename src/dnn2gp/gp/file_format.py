"""The file of a saved GP: tensors in safetensors format, everything else as JSON in its header, and no pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dnn2gp.inference import Inference
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.files import write_whole
from dnn2gp.weights.structures import Structure

FORMAT_VERSION = 2
_READABLE = (1, 2)
_KEY = "dnn2gp"


def write_file(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write the header and the tensors, completely or not at all."""
    # A copy of each tensor: safetensors accepts neither views nor shared memory.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}

    def write(place: Path) -> None:
        try:
            save_file(own, place, metadata={_KEY: json.dumps(header)})
        except SafetensorError as error:
            raise OSError(f"Could not write {path}: {error}. An older file of that name is unchanged.") from error

    write_whole(path, write)


@final
class Part(dict[str, Tensor]):
    """The tensors of one part of a file by their names; a missing one means that the file is damaged."""

    def __init__(self, path: Path, part: str, tensors: dict[str, Tensor]) -> None:
        """The tensors whose names began with `part`."""
        super().__init__(tensors)
        self._where = f"{path} is not a complete dnn2gp file: it has no tensor '{part}/"

    def __missing__(self, name: str) -> Tensor:
        raise FileFormatError(f"{self._where}{name}'. Save the GP again.")


@final
@dataclass(frozen=True)
class SavedFile:
    """The contents of a file: its validated header and its tensors."""

    path: Path
    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @staticmethod
    def read(path: Path) -> SavedFile:
        """Read a file that `write_file` wrote."""
        if path.is_dir():
            raise FileFormatError(f"{path} is a folder; expected a file that dnn2gp.save wrote.")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise FileFormatError(
                f"{path} is not a complete safetensors file ({error}). It may be truncated, or have another format "
                "(pickle files from torch.save are never opened). Give a file that dnn2gp.save wrote, or save the "
                "GP again."
            ) from error
        if _KEY not in metadata:
            raise FileFormatError(
                f"{path} is a safetensors file, but not one of dnn2gp: it has no {_KEY!r} header. "
                "Give a file that dnn2gp.save wrote."
            )
        return SavedFile(path, _header(path, metadata[_KEY], tensors), tensors)

    def part(self, part: str) -> Part:
        """The tensors of one part."""
        prefix = f"{part}/"
        members = {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}
        return Part(self.path, part, members)

    def to(self, device: torch.device) -> SavedFile:
        """The same with all tensors on a device."""
        return replace(self, tensors={name: tensor.to(device) for name, tensor in self.tensors.items()})

    def inputs(self) -> Inputs:
        """The inputs of the training data, in the container that they came in."""
        form, state = self.header["inputs"], self.part("inputs")
        count = len(form) if isinstance(form, list) else 1 if form == "tensor" else max(1, len(state))
        xs = [state[str(position)] for position in range(count)]
        if isinstance(form, list):
            return dict(zip(form, xs, strict=True))
        return xs[0] if form == "tensor" else tuple(xs) if form == "tuple" else xs


def form(inputs: Inputs) -> str | list[str]:
    """How inputs are packed: the name of their container, or the keys of a dict."""
    if isinstance(inputs, dict):
        return list(inputs)
    return "tensor" if isinstance(inputs, Tensor) else "tuple" if isinstance(inputs, tuple) else "list"


def _header(path: Path, text: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The header with its choices decoded, if every entry has a value that this release knows."""
    try:
        header = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}: its {_KEY!r} header is not JSON ({error}). Save the GP again.") from error
    header = header if isinstance(header, dict) else {}
    if header.get("format") not in _READABLE:
        raise FileFormatError(
            f"{path} has format {header.get('format')} (dnn2gp {header.get('dnn2gp')}); this release reads the formats "
            f"{_READABLE}. Install the release that wrote it, or save the GP again."
        )
    if header["format"] == 1:
        header = _upgraded(header)
    weights = {name.removeprefix("network/") for name in tensors}
    known = {
        "likelihood": isinstance(header.get("likelihood"), str),
        "trainable": _names(header.get("trainable"), weights),
        "inputs": header.get("inputs") in ["tensor", "tuple", "list"] or _names(header.get("inputs")),
        "features": header.get("features") in ["jacobian", "gradient", "step"],
        "quadratic": isinstance(header.get("quadratic"), bool),
    }
    for name, valid in known.items():
        if not valid:
            raise _unknown(path, header, name)
    choices: dict[str, Any] = {}
    for name, kind in {"prior": Structure, "inference": Inference}.items():
        try:
            choices[name] = kind.decoded(header.get(name))
        except InputError as error:
            raise _unknown(path, header, name, f" ({error})") from error
    return {**header, **choices}


def _upgraded(header: dict[str, Any]) -> dict[str, Any]:
    """A header of format 1, in which the structure is a separate field rather than an option of the inference."""
    name, structure = header.get("inference"), header.get("structure")
    kind = Inference.kinds.get(name) if isinstance(name, str) else None
    if kind is None or "structure" not in {field.name for field in fields(kind)}:  # pyright: ignore[reportArgumentType]
        return header
    return {**header, "inference": {"name": name, "structure": structure}}


def _unknown(path: Path, header: dict[str, Any], name: str, why: str = "") -> FileFormatError:
    return FileFormatError(
        f"{path}: its header has {name} = {header.get(name)!r}, which this release does not know{why}. The file is "
        f"damaged or was written by another release (dnn2gp {header.get('dnn2gp')}): save the GP again."
    )


def _names(value: object, among: set[str] | None = None) -> bool:
    """Whether `value` is a list of at least one name, all of them `among` the given ones."""
    names = value if isinstance(value, list) else []
    return len(names) > 0 and all(isinstance(name, str) and (among is None or name in among) for name in names)
