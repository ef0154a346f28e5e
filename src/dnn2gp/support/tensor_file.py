"""Named tensors in a safetensors file with checksums, read by their entries before any memory is allocated for them.

A safetensors file is the length of its header (8 bytes), the header (JSON: the dtype, shape and place of each tensor,
and text under `__metadata__`) and the bytes of all tensors without gaps. Our metadata is a JSON text under a key of the
caller's and the SHA-256 of that text; the text holds the SHA-256 of every tensor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, final

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from dnn2gp.support.errors import FileFormatError
from dnn2gp.support.files import open_regular, write_whole
from dnn2gp.support.json_text import parsed_json, short
from dnn2gp.support.memory import require

CHECKSUMS = "sha256"
"""The field of the JSON text that holds the checksum of every tensor, by name."""
_SEAL = "sha256"
_METADATA = "__metadata__"
_LARGEST_HEADER = 100_000_000  # that of safetensors
_OBJECTS = 32  # bytes of Python objects for one byte of JSON, at most
_MOST_AXES = 64  # of a torch tensor

_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}


@final
@dataclass(frozen=True)
class Entry:
    """What the header of a file says about one tensor: its dtype, its shape, and where its bytes begin and end."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    def __str__(self) -> str:
        """The dtype and the shape, for messages."""
        return f"{str(self.dtype).removeprefix('torch.')} of shape {self.shape}"


@final
@dataclass(frozen=True)
class TensorFile:
    """An open file whose header has been checked: its entries lie in the file, one after another, without gaps."""

    path: Path
    header: dict[str, Any]
    """The JSON text of the caller, or {} if there is none."""
    entries: dict[str, Entry]
    _file: BinaryIO
    _checksums: dict[str, str] | None

    @staticmethod
    @contextmanager
    def open(path: Path, key: str, budget: int) -> Iterator[TensorFile]:
        """Open a file that `write_tensors` wrote with this key, if header and tensors fit into a budget of bytes.

        The file stays open until the end, so that its tensors belong to its header even if it is replaced meanwhile.

        Raises:
            FileFormatError: For every defect; the message names the entry.
            MemoryBudgetError: If the file is too large.
        """
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            header = _header(path, file, size, budget)
            text = _text(path, header, key)
            entries = _entries(path, header)
            begin = size - _end(path, entries, size - file.tell())
            require(size - begin, budget, f"Loading {path}", "Save a GP of fewer examples or weights.")
            moved = {
                name: Entry(name, own.dtype, own.shape, begin + own.start, begin + own.stop)
                for name, own in entries.items()
            }
            checksums = _checksums(path, text, entries) if CHECKSUMS in text else None
            yield TensorFile(path, text, moved, file, checksums)

    @property
    def has_checksums(self) -> bool:
        """Whether the file says what the checksum of each tensor is."""
        return self._checksums is not None

    def read(self, name: str) -> Tensor:
        """One tensor, if it is the one that was written."""
        entry = self.entries[name]
        tensor = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
        target = _bytes(tensor)
        self._file.seek(entry.start)
        place = 0
        while place < len(target):
            count = self._file.readinto(target[place:])  # pyright: ignore[reportAttributeAccessIssue]
            if not count:
                raise damaged(self.path, name, f"{len(target)} bytes", f"{place}; it is truncated")
            place += count
        if self._checksums is not None and self._checksums[name] != _checksum(entry.dtype, entry.shape, target):
            raise damaged(self.path, name, "the tensor that was written", "other bytes; its checksum differs")
        if entry.dtype == torch.bool and max(target, default=0) > 1:
            raise damaged(self.path, name, "booleans (0 or 1)", f"{max(target)}")
        if sys.byteorder == "big":
            tensor = torch.from_numpy(tensor.numpy().byteswap())
        return tensor


def write_tensors(path: Path, key: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and a header with their checksums, completely or not at all."""
    # A copy of each tensor: safetensors accepts neither views nor shared memory.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    metadata = sealed(key, header, own)

    def write(place: Path) -> None:
        try:
            save_file(own, place, metadata=metadata)
        except SafetensorError as error:
            raise OSError(f"Could not write {path}: {error}. An older file of that name is unchanged.") from error

    write_whole(path, write)


def sealed(key: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The metadata of a file: the header with the checksum of each tensor, and the checksum of this text."""
    checksums = {name: _checksum(tensor.dtype, tuple(tensor.shape), _bytes(tensor)) for name, tensor in tensors.items()}
    text = json.dumps({**header, CHECKSUMS: checksums})
    return {key: text, _SEAL: sha256(text.encode()).hexdigest()}


def damaged(path: Path | str, name: str, expected: str, got: str) -> FileFormatError:
    """The error for one entry of a file."""
    return FileFormatError(
        f"{path}: {short(name)}: expected {expected}; got {got}. The file is damaged, or was changed or written by "
        "another release: save it again."
    )


def foreign(path: Path, key: str) -> FileFormatError:
    """The error for a safetensors file of another program."""
    return FileFormatError(
        f"{path} is a safetensors file, but not one of dnn2gp: it has no {key!r} header. Give a file that dnn2gp wrote."
    )


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    flat = tensor.detach().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _checksum(dtype: torch.dtype, shape: tuple[int, ...], content: memoryview) -> str:
    """The SHA-256 of a tensor with its dtype and shape."""
    digest = sha256(f"{dtype} {list(shape)} ".encode())
    digest.update(content)
    return digest.hexdigest()


def _header(path: Path, file: BinaryIO, size: int, budget: int) -> dict[str, Any]:
    """The JSON header, if the file is as long as it says."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _LARGEST_HEADER):
        raise _incomplete(path, f"a header of {length} bytes in a file of {size}")
    require(_OBJECTS * length, budget, f"The header of {path}", "Save a GP of a network with fewer layers.")
    try:
        header = parsed_json(file.read(length), f"{path}: the safetensors header")
    except FileFormatError as error:
        raise _incomplete(path, str(error)) from error
    if not isinstance(header, dict):
        raise _incomplete(path, f"a header that is not an object: {short(header)}")
    return header


def _incomplete(path: Path, why: str) -> FileFormatError:
    return FileFormatError(
        f"{path} is not a complete safetensors file ({why}). It may be truncated, or of another kind (a pickle by "
        "torch.save is never opened). Give a file that dnn2gp wrote, or save it again."
    )


def _entries(path: Path, header: Mapping[str, Any]) -> dict[str, Entry]:
    """The entries of the header in the order of their bytes, each with a known dtype and a place of its size."""
    found = [_entry(path, name, value) for name, value in header.items() if name != _METADATA]
    return {own.name: own for own in sorted(found, key=lambda own: (own.start, own.stop))}


def _entry(path: Path, name: str, value: object) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise damaged(path, name, "dtype, shape and data_offsets", short(value))
    dtype = _DTYPES.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if dtype is None:
        raise damaged(path, name, f"a dtype, one of {', '.join(_DTYPES)}", short(value["dtype"]))
    shape, place = value["shape"], value["data_offsets"]
    if not _sizes(shape) or len(shape) > _MOST_AXES or prod(max(1, size) for size in shape) >= 2**60:
        raise damaged(path, name, "a shape of non-negative integers", short(shape))
    if not _sizes(place) or len(place) != 2 or place[1] - place[0] != prod(shape) * dtype.itemsize:
        raise damaged(path, name, f"the place of {prod(shape)} numbers", short(place))
    return Entry(name, dtype, tuple(shape), place[0], place[1])


def _sizes(value: object) -> bool:
    """Whether it is a list of integers that a size can have."""
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**60 for size in value)


def _end(path: Path, entries: Mapping[str, Entry], available: int) -> int:
    """The size of all tensors, if they lie one after another and fill the file."""
    end = 0
    for entry in entries.values():
        if entry.start != end:
            raise damaged(path, entry.name, f"bytes that begin at {end}, after the last tensor", f"{entry.start}")
        end = entry.stop
    if end != available:
        raise _incomplete(path, f"tensors of {end} bytes, {available} in the file")
    return end


def _text(path: Path, container: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The JSON under `key`, if its checksum is right; {} for a file without metadata."""
    if _METADATA not in container:
        return {}
    metadata = container[_METADATA]
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged(path, _METADATA, "texts by name", short(metadata))
    if key not in metadata:
        raise foreign(path, key)
    if not set(metadata) <= {key, _SEAL}:
        raise damaged(path, _METADATA, f"{key} and {_SEAL}", short(sorted(metadata)))
    text = metadata[key]
    header = parsed_json(text, f"{path}: its {key!r} header")
    seal = metadata.get(_SEAL)
    if seal is not None and seal != sha256(text.encode("utf-8", "surrogatepass")).hexdigest():
        raise damaged(path, key, "the header that was written", "another text; its checksum differs")
    if not isinstance(header, dict):
        raise damaged(path, key, "an object with a format", short(header))
    if (seal is None) != (CHECKSUMS not in header):
        raise damaged(path, key, f"{CHECKSUMS} in the header and of the header, or neither", "one of the two")
    return header


def _checksums(path: Path, header: Mapping[str, Any], entries: Mapping[str, Entry]) -> dict[str, str]:
    """The checksum of each tensor, if they are those of the tensors in the file."""
    checksums = header[CHECKSUMS]
    if not isinstance(checksums, dict) or not all(isinstance(value, str) for value in checksums.values()):
        raise damaged(path, CHECKSUMS, "texts by name", short(checksums))
    for name in sorted(set(checksums) ^ set(entries)):
        got = "no such tensor" if name in checksums else "no checksum"
        raise damaged(path, name, "a tensor and its checksum", got)
    return checksums
