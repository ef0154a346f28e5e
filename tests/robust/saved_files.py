"""GPs to save, and changes of what a file contains with checksums that are right, as somebody would who means harm."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dnn2gp import CategoricalLikelihood, Diagonal, FunctionSpace, GaussianProcess, WeightSpace, convert
from dnn2gp.inference import LinearisedMode, NetworkOutput
from dnn2gp.inference.calibration import Calibration
from dnn2gp.support.tensor_file import sealed

from robust.support import DELTA, mlp, regression

CLASSIFIERS: dict[str, dict[str, Any]] = {
    "at the mode": {"mean": LinearisedMode(), "inference": WeightSpace()},
    "at the mode, function space": {"mean": LinearisedMode(), "inference": FunctionSpace()},
    "at the mode, diagonal": {"mean": LinearisedMode(), "structure": Diagonal()},
    "around the network": {"mean": NetworkOutput()},
    "calibrated": {"mean": NetworkOutput(sites_at_mode=True)},
    "by default": {},
}
"""Settings of convert that differ in mean and calibration."""


def classifier(kind: str) -> GaussianProcess:
    """A GP with two classes and these settings."""
    data = regression()[0], torch.arange(10) % 2
    gp = convert(mlp(), data, CategoricalLikelihood(), DELTA, **CLASSIFIERS[kind])
    return replace(gp, calibration=Calibration(0.3, 1.7)) if kind == "calibrated" else gp


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a saved GP, by safetensors alone."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["dnn2gp"])
        return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)


def rewrite(
    path: Path,
    change_header: Callable[[dict[str, Any]], object] = lambda header: header,
    change_tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda tensors: tensors,
    *,
    seal: bool = True,
) -> None:
    """Write a saved GP again with another header (a dict, or any text) and other tensors.

    With `seal`, all checksums are those of the new content; without, the file has none, like those of formats 1 and 2.
    """
    header, tensors = contents(path)
    tensors = {name: tensor.contiguous() for name, tensor in change_tensors(tensors).items()}
    del header["sha256"]
    changed = change_header(header)
    if isinstance(changed, str):
        metadata = {"dnn2gp": changed, "sha256": sha256(changed.encode()).hexdigest()}
    else:
        assert isinstance(changed, dict)
        metadata = sealed("dnn2gp", changed, tensors) if seal else {"dnn2gp": json.dumps(changed)}
    save_file(tensors, path, metadata=metadata)


def raw_header(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file as it is, and the bytes of its tensors."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_raw_header(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the header of a safetensors file, and leave the bytes of its tensors as they are."""
    header, body = raw_header(path)
    text = json.dumps(change(header)).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
