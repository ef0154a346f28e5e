"""checkpoint= of convert: what the steps of a conversion depend on, and the folder in which they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from hashlib import sha256
from importlib.metadata import version
from os import PathLike
from re import sub

import torch
from torch import Tensor

from dnn2gp.features import NetworkFeatures
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.checksums import checksums
from dnn2gp.network.inputs import Inputs, example_of, leaves, num_examples
from dnn2gp.support.choice import Choice
from dnn2gp.support.files import as_path
from dnn2gp.support.resumable import resumable


def checkpointed(
    folder: str | PathLike[str] | None,
    features: NetworkFeatures,
    inputs: Inputs,
    targets: Tensor,
    likelihood: Likelihood,
    arguments: Mapping[str, object],
) -> AbstractContextManager[None]:
    """A context in which the steps of a conversion are kept in a folder, for a conversion with the same arguments."""
    if folder is None:
        return nullcontext()

    def work() -> dict[str, str]:
        return fingerprint(features, inputs, targets, likelihood, arguments)

    return resumable(as_path(folder), work, features.budget(), features.team)


def checkpoint_bytes(folder: object, features: NetworkFeatures, inputs: Inputs) -> int:
    """The memory for the copies of a step of the search for the mode: weights and outputs in float64.

    The copies of blocks of the basis and of samples are smaller than what is in memory while these are computed.
    """
    if folder is None:
        return 0
    return 2 * 8 * (features.num_weights + num_examples(inputs) * features.num_outputs)


def fingerprint(
    features: NetworkFeatures, inputs: Inputs, targets: Tensor, likelihood: Likelihood, arguments: Mapping[str, object]
) -> dict[str, str]:
    """What the result of a conversion depends on, by its names in messages, as SHA-256 or in words.

    Of functions, such as the loss of a custom likelihood, only the names are known.
    """
    network = features.network
    examples = [(leaf.dtype, tuple(leaf.shape[1:])) for leaf in leaves(example_of(inputs))]
    return {
        "dnn2gp": version("dnn2gp"),
        "torch": torch.__version__,
        "device": str(network.device),
        "network": described([(name, tensor) for name, tensor in sorted(network.state().items())]),
        "weights with a posterior": described(list(network.layout.names)),
        "inputs": described([repr(examples), checksums(inputs)]),
        "targets": described(targets),
        "likelihood": described([likelihood.name, sorted(likelihood.state().items())]),
        "processes": str(features.team.size),
    } | {name: described(value) for name, value in arguments.items()}


def described(value: object) -> str:
    """A value in words if it is short, otherwise its SHA-256."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Choice):
        return repr(value.encoded())
    if is_dataclass(value) and not isinstance(value, type):
        members = [(field.name, described(getattr(value, field.name))) for field in fields(value)]
        return f"{type(value).__name__}({', '.join(f'{name}={own}' for name, own in members)})"
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return f"sha256 {sha256(b''.join(_content(value))).hexdigest()}"


def _content(value: object) -> Iterable[bytes]:
    """The bytes that a value consists of, with their kinds and numbers, so that different values differ."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        yield f"{plain.dtype} {tuple(plain.shape)} ".encode()
        yield plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    elif isinstance(value, Mapping):
        yield from _content([(str(name), own) for name, own in value.items()])
    elif isinstance(value, list | tuple):
        yield f"{len(value)} of ".encode()
        for own in value:
            yield from _content(own)
    else:
        yield f"{sub(r' at 0x[0-9a-f]+', '', repr(value))}; ".encode()
