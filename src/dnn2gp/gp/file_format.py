"""The file of a saved GP: tensors in safetensors format, everything else as JSON in its header, and no pickle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from dnn2gp.gp.file_header import FORMAT_VERSION, Header
from dnn2gp.gp.file_schema import Schema
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.memory import default_budget
from dnn2gp.support.tensor_file import TensorFile, damaged, foreign, write_tensors

_KEY = "dnn2gp"


def write_file(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write the header and the tensors, completely or not at all."""
    write_tensors(path, _KEY, {"format": FORMAT_VERSION, **header}, tensors)


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every weight and buffer of a saved network by name, without reading any of them."""
    with TensorFile.open(path, _KEY, default_budget()) as file:
        entries = {name: own.shape for name, own in file.entries.items() if name.startswith("network/")}
    return {name.removeprefix("network/"): shape for name, shape in entries.items()}


@final
class Part(dict[str, Tensor]):
    """The tensors of one part of a file by their names; a missing one means that the file is damaged."""

    def __init__(self, path: Path, part: str, tensors: dict[str, Tensor]) -> None:
        """The tensors whose names began with `part`."""
        super().__init__(tensors)
        self._path, self._part = path, part

    def __missing__(self, name: str) -> Tensor:
        raise damaged(self._path, f"{self._part}/{name}", "a tensor", "no such tensor")


@final
@dataclass(frozen=True)
class SavedFile:
    """The contents of a file, which have been checked: its header and its tensors."""

    path: Path
    header: Header
    tensors: dict[str, Tensor]

    @staticmethod
    def read(path: Path, budget: int) -> SavedFile:
        """Read a file that `write_file` wrote, once its header says that all of it is there and fits into the budget.

        Raises:
            FileFormatError: If an entry is missing, unknown, or not what it must be; the message names it.
            MemoryBudgetError: If the tensors are larger than the budget.
        """
        with TensorFile.open(path, _KEY, budget) as file:
            if not file.header:
                raise foreign(path, _KEY)
            header = Header.decoded(path, file.header)
            schema = Schema(path, header, file.entries, file.read)
            schema.check()
            tensors: dict[str, Tensor] = {}
            for name in file.entries:
                tensors[name] = file.read(name)
                schema.check_values(name, tensors[name])
        return SavedFile(path, header, tensors)

    @property
    def bytes(self) -> int:
        """The memory of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

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
        form, state = self.header.inputs, self.part("inputs")
        xs = [state[str(position)] for position in range(len(state))]
        if isinstance(form, list):
            return dict(zip(form, xs, strict=True))
        return xs[0] if form == "tensor" else tuple(xs) if form == "tuple" else xs


def form(inputs: Inputs) -> str | list[str]:
    """How inputs are packed: the name of their container, or the keys of a dict."""
    if isinstance(inputs, dict):
        return list(inputs)
    return "tensor" if isinstance(inputs, Tensor) else "tuple" if isinstance(inputs, tuple) else "list"
