"""A converted GP in one file: safetensors for the tensors, JSON in its header for the rest, nothing to unpickle."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.features import FeatureMap, GradientFeatures, LayerwiseFeatures, NetworkFeatures, StackedFeatures
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.inference import Inference
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.likelihoods import CustomLikelihood, Likelihood, likelihood_from_state
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, leaves, take
from dnn2gp.support.errors import FileFormatError, InputError, NetworkError
from dnn2gp.support.files import write_whole
from dnn2gp.support.randomness import global_states_kept
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.structures import Structure

FORMAT_VERSION = 1
_KEY = "dnn2gp"
# Examples whose outputs are kept, to see when loading that the network computes what it did.
_CHECKED = 4


def save(gp: object, path: str | PathLike[str]) -> None:
    """Write the GP to one file, whole or not at all: weights, buffers, data, prior, likelihood, what was computed."""
    if not isinstance(gp, GaussianProcess):
        raise InputError(f"save: expected a GaussianProcess, as convert returns; got {type(gp).__name__}.")
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
    memory_budget: int | float | None = None,
    features: Callable[..., NetworkFeatures] = LayerwiseFeatures,
) -> GaussianProcess:
    """Read a GP; `network` is a module of the class that was converted, with any weights, or what builds one.

    A custom likelihood is code, which no file holds: hand it in again, as `likelihood`. So is an engine: `features`.
    """
    file = _File.read(Path(path))
    header = file.header
    likelihood = _likelihood(likelihood, header["likelihood"], file.part("likelihood"))
    inputs = file.inputs()
    function = Network(_module(network), inputs, state=file.part("network"), trainable=header["trainable"])
    file = file.to(function.device)
    inputs = function.check_inputs(inputs)
    jacobian = features(function, inputs, memory_budget=memory_budget)
    of_step, step = header["features"] == "step", file.part("step")
    own = _at_samples(jacobian, step["samples"]) if of_step else jacobian
    _check_outputs(own.outputs(take(inputs, slice(0, _CHECKED))), file.part("check")["outputs"])
    expansion = _expansion(header, file.part("expansion"), own, inputs)
    expansion = expansion.anchored(step["anchor"]) if of_step else expansion
    prior = file.part("prior")
    known = Gaussian(prior["mean"], Structure.kinds[header["prior"]]().restored(prior))
    model = LinearModel(expansion, known, of_step=of_step)
    inference = Inference.kinds[header["inference"]].restored(model, header["structure"], file.part("inference"))
    tuning = header.get("tuning")
    known_tuning = None if tuning is None else TuningResult.from_state(tuning, str(path))
    return GaussianProcess(own, inference, likelihood, known_tuning)


def _at_samples(jacobian: NetworkFeatures, samples: Float[Tensor, "S P"]) -> NetworkFeatures | StackedFeatures:
    maps = [jacobian.at(weights) for weights in samples]
    return maps[0] if len(maps) == 1 else StackedFeatures(maps)


def _pack(gp: GaussianProcess) -> tuple[dict[str, Any], dict[str, Tensor]]:
    expansion, prior = gp.model.expansion, gp.prior
    features = expansion.features
    gradient = isinstance(features, GradientFeatures)
    examples = features.examples(expansion.inputs) if isinstance(features, GradientFeatures) else expansion.inputs
    xs = leaves(expansion.inputs)[:-1] if gradient else leaves(expansion.inputs)
    header = {
        "format": FORMAT_VERSION,
        "dnn2gp": version("dnn2gp"),
        "likelihood": gp.likelihood.name,
        "trainable": list(gp.network.layout.names),
        "inputs": _form(features.form if isinstance(features, GradientFeatures) else expansion.inputs),
        "features": "gradient" if gradient else "step" if gp.model.of_step else "jacobian",
        "quadratic": expansion.quadratic,
        "prior": prior.precision.structure.name,
        "inference": gp.inference.name,
        "structure": gp.inference.structure,
        "tuning": None if gp.tuning is None else gp.tuning.state(),
    }
    parts: dict[str, dict[str, Tensor]] = {
        "network": gp.network.state(),
        "check": {"outputs": gp.features.outputs(take(examples, slice(0, _CHECKED)))},
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
    maps = list(gp.features.maps) if isinstance(gp.features, StackedFeatures) else [gp.features]
    samples = torch.stack([each.anchor for each in maps])
    if gp.model.of_step:
        parts["step"] = {"anchor": expansion.anchor, "samples": samples}
    return header, {f"{part}/{name}": tensor for part, members in parts.items() for name, tensor in members.items()}


class _Part(dict[str, Tensor]):
    """The tensors of one part of a file by their names; a missing one is an error of the file."""

    def __init__(self, path: Path, part: str, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self._where = f"{path} is not a whole dnn2gp file: it has no tensor '{part}/"

    def __missing__(self, name: str) -> Tensor:
        raise FileFormatError(f"{self._where}{name}'. Save the GP again.")


@dataclass(frozen=True)
class _File:
    """A file that was read: its header, checked, and its tensors."""

    path: Path
    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @staticmethod
    def read(path: Path) -> _File:
        if path.is_dir():
            raise FileFormatError(f"{path} is a folder; expected a file that dnn2gp.save wrote.")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise FileFormatError(
                f"{path} is not a whole safetensors file ({error}). It may be truncated, or of another kind (a pickle "
                "by torch.save is never opened). Give a file that dnn2gp.save wrote, or save the GP again."
            ) from error
        if _KEY not in metadata:
            raise FileFormatError(
                f"{path} is a safetensors file, but not one of dnn2gp: it has no {_KEY!r} header. "
                "Give a file that dnn2gp.save wrote."
            )
        return _File(path, _header(path, metadata[_KEY], tensors), tensors)

    def part(self, part: str) -> _Part:
        prefix = f"{part}/"
        members = {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}
        return _Part(self.path, part, members)

    def to(self, device: torch.device) -> _File:
        return replace(self, tensors={name: tensor.to(device) for name, tensor in self.tensors.items()})

    def inputs(self) -> Inputs:
        form, state = self.header["inputs"], self.part("inputs")
        count = len(form) if isinstance(form, list) else 1 if form == "tensor" else max(1, len(state))
        xs = [state[str(position)] for position in range(count)]
        if isinstance(form, list):
            return dict(zip(form, xs, strict=True))
        return xs[0] if form == "tensor" else tuple(xs) if form == "tuple" else xs


def _header(path: Path, text: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The header, if it is one of this version and every entry has a value that this release knows."""
    try:
        header = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}: its {_KEY!r} header is not JSON ({error}). Save the GP again.") from error
    header = header if isinstance(header, dict) else {}
    if header.get("format") != FORMAT_VERSION:
        raise FileFormatError(
            f"{path} has format {header.get('format')} (dnn2gp {header.get('dnn2gp')}); this release reads "
            f"{FORMAT_VERSION}. Install the release that wrote it, or save the GP again."
        )
    structures, weights = list(Structure.kinds), {name.removeprefix("network/") for name in tensors}
    known = {
        "likelihood": isinstance(header.get("likelihood"), str),
        "trainable": _names(header.get("trainable"), weights),
        "inputs": header.get("inputs") in ["tensor", "tuple", "list"] or _names(header.get("inputs")),
        "features": header.get("features") in ["jacobian", "gradient", "step"],
        "quadratic": isinstance(header.get("quadratic"), bool),
        "prior": header.get("prior") in structures,
        "inference": header.get("inference") in list(Inference.kinds),
        "structure": header.get("structure") in structures,
    }
    for name, valid in known.items():
        if not valid:
            raise FileFormatError(
                f"{path}: its header has {name} = {header.get(name)!r}, which this release does not know. The file is "
                f"damaged or of another release (dnn2gp {header.get('dnn2gp')} wrote it): save the GP again."
            )
    return header


def _names(value: object, among: set[str] | None = None) -> bool:
    """Whether it is a list of names, one at least, all of them `among` the given."""
    names = value if isinstance(value, list) else []
    return len(names) > 0 and all(isinstance(name, str) and (among is None or name in among) for name in names)


def _module(network: object) -> object:
    """The module, or what a class or function of no arguments builds."""
    if isinstance(network, nn.Module) or not callable(network):
        return network
    with global_states_kept():  # a fresh module draws its first weights
        return network()


def _check_outputs(found: Tensor, saved: Tensor) -> None:
    """Refuse a network with the weights of the saved one that computes something else."""
    if found.shape != saved.shape or not torch.allclose(found, saved, rtol=1e-3, atol=1e-3 * saved.abs().max().item()):
        raise NetworkError(
            "The network takes the saved weights, but its outputs are not those it had when it was saved. Look for "
            "another activation, dropout or pooling, or other arguments of its class."
        )


def _likelihood(given: Likelihood | None, name: str, state: dict[str, Tensor]) -> Likelihood:
    if given is not None:
        if not isinstance(given, Likelihood):
            raise InputError(f"likelihood: expected a dnn2gp likelihood (an instance); got {given!r}.")
        if given.name != name:
            raise InputError(f"likelihood: the GP was saved with a {name!r} likelihood; got a {given.name!r} one.")
        return given.detached()
    if name == CustomLikelihood.name:
        raise InputError(
            "The GP was saved with a custom likelihood, which is code and in no file: "
            "pass it as load(..., likelihood=...)."
        )
    return likelihood_from_state(name, state)


def _expansion(
    header: dict[str, Any], state: dict[str, Tensor], jacobian: NetworkFeatures | StackedFeatures, inputs: Inputs
) -> Expansion:
    residual, root, log_likelihood = (state[name] for name in ("residual", "root", "log_likelihood"))
    features: FeatureMap = jacobian
    if header["features"] == "gradient":
        assert isinstance(jacobian, NetworkFeatures)
        features = GradientFeatures(jacobian, inputs)
        inputs, residual = GradientFeatures.pair(inputs, residual), residual.new_ones(len(residual), 1)
    return Expansion(features, inputs, residual, root, jacobian.anchor, log_likelihood, header["quadratic"])


def _form(inputs: Inputs) -> str | list[str]:
    """How the tensors are packed: their container, or the keys of a dict."""
    if isinstance(inputs, dict):
        return list(inputs)
    return "tensor" if isinstance(inputs, Tensor) else "tuple" if isinstance(inputs, tuple) else "list"
