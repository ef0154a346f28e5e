"""A converted GP in one file: safetensors for the tensors, JSON in its header for the rest, nothing to unpickle."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dnn2gp.errors import FileFormatError, InputError
from dnn2gp.expansion import Expansion
from dnn2gp.features import FeatureMap, GradientFeatures, JacobianFeatures
from dnn2gp.files import write_whole
from dnn2gp.gaussian import Gaussian
from dnn2gp.gaussian_process import GaussianProcess
from dnn2gp.inference import Inference
from dnn2gp.inputs import Inputs, leaves
from dnn2gp.likelihoods import CustomLikelihood, Likelihood, likelihood_from_state
from dnn2gp.linear_model import LinearModel
from dnn2gp.network import Network
from dnn2gp.structures import Structure

FORMAT_VERSION = 1
_KEY = "dnn2gp"


def save(gp: GaussianProcess, path: str | PathLike[str]) -> None:
    """Write the GP to one file, whole or not at all: weights, buffers, data, prior, likelihood and what was computed."""
    header, tensors = _pack(gp)
    # A copy of each tensor: safetensors takes neither views nor shared memory.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}

    def write(place: Path) -> None:
        try:
            save_file(own, place, metadata={_KEY: json.dumps(header)})
        except SafetensorError as error:
            raise OSError(f"Could not write {path}: {error}. An older file of that name is as it was.") from error

    write_whole(Path(path), write)


def load(
    path: str | PathLike[str],
    network: nn.Module | Callable[[], nn.Module],
    likelihood: Likelihood | None = None,
    memory_budget: int | None = None,
) -> GaussianProcess:
    """Read a GP; `network` is a module of the class that was converted, with any weights, or what builds one.

    A custom likelihood is code, which no file holds: hand it in again as `likelihood`.
    """
    header, tensors = _read(Path(path))
    module = network if isinstance(network, nn.Module) else network()
    likelihood = likelihood or _likelihood(header, _part(tensors, "likelihood"))
    inputs = _unpack_inputs(header["inputs"], _part(tensors, "inputs"))
    function = Network(module, inputs, state=_part(tensors, "network"), trainable=header["trainable"])
    inputs = function.check_inputs(inputs)
    jacobian = JacobianFeatures(function, inputs, memory_budget=memory_budget)
    expansion = _expansion(header, _part(tensors, "expansion"), jacobian, inputs)
    prior = _part(tensors, "prior")
    mean = prior.pop("mean")
    model = LinearModel(expansion, Gaussian(mean, Structure.kinds[header["prior"]].from_state(prior)))
    inference = Inference.kinds[header["inference"]].restored(model, header["structure"], _part(tensors, "inference"))
    return GaussianProcess(jacobian, inference, likelihood)


def _pack(gp: GaussianProcess) -> tuple[dict[str, Any], dict[str, Tensor]]:
    expansion, prior = gp.model.expansion, gp.prior
    gradient = isinstance(expansion.features, GradientFeatures)
    xs = leaves(expansion.inputs)[:-1] if gradient else leaves(expansion.inputs)
    header = {
        "format": FORMAT_VERSION,
        "dnn2gp": version("dnn2gp"),
        "likelihood": gp.likelihood.name,
        "trainable": list(gp.network.layout.names),
        "inputs": _form(expansion.features.form if isinstance(expansion.features, GradientFeatures) else expansion.inputs),
        "features": "gradient" if gradient else "jacobian",
        "prior": prior.precision.name,
        "inference": gp.inference.name,
        "structure": gp.inference.structure,
    }
    parts: dict[str, dict[str, Tensor]] = {
        "network": gp.network.state(),
        "inputs": {str(position): leaf for position, leaf in enumerate(xs)},
        "expansion": {
            "residual": leaves(expansion.inputs)[-1] if gradient else expansion.residual,
            "root": expansion.root,
            "log_likelihood": expansion.log_likelihood,
        },
        "prior": {"mean": prior.mean, **prior.precision.state()},
        "likelihood": {} if isinstance(gp.likelihood, CustomLikelihood) else gp.likelihood.state(),
        "inference": gp.inference.state(),
    }
    return header, {f"{part}/{name}": tensor for part, members in parts.items() for name, tensor in members.items()}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise FileFormatError(f"{path} is not a whole safetensors file ({error}). Save the GP again.") from error
    if _KEY not in metadata:
        raise FileFormatError(f"{path} is a safetensors file, but not one of dnn2gp: it has no {_KEY!r} header.")
    header = json.loads(metadata[_KEY])
    if header["format"] != FORMAT_VERSION:
        raise FileFormatError(
            f"{path} has format {header['format']} (dnn2gp {header['dnn2gp']}); this release reads {FORMAT_VERSION}. "
            "Install the release that wrote it, or save the GP again."
        )
    return header, tensors


def _part(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _likelihood(header: dict[str, Any], state: dict[str, Tensor]) -> Likelihood:
    if header["likelihood"] == CustomLikelihood.name:
        raise InputError("The GP was saved with a custom likelihood, which is code: pass it as load(..., likelihood=...).")
    return likelihood_from_state(header["likelihood"], state)


def _expansion(
    header: dict[str, Any], state: dict[str, Tensor], jacobian: JacobianFeatures, inputs: Inputs
) -> Expansion:
    residual, root, log_likelihood = (state[name].to(jacobian.anchor.device) for name in ("residual", "root", "log_likelihood"))
    features: FeatureMap = jacobian
    if header["features"] == "gradient":
        features = GradientFeatures(jacobian, inputs)
        inputs, residual = GradientFeatures.pair(inputs, residual), residual.new_ones(len(residual), 1)
    return Expansion(features, inputs, residual, root, jacobian.anchor, log_likelihood)


def _form(inputs: Inputs) -> str | list[str]:
    """How the tensors are packed: their container, or the keys of a dict."""
    return list(inputs) if isinstance(inputs, dict) else type(inputs).__name__ if isinstance(inputs, tuple | list) else "tensor"


def _unpack_inputs(form: str | list[str], state: dict[str, Tensor]) -> Inputs:
    xs = [state[str(position)] for position in range(len(state))]
    if isinstance(form, list):
        return dict(zip(form, xs, strict=True))
    return xs[0] if form == "tensor" else tuple(xs) if form == "tuple" else xs
