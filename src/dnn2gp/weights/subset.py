"""Which weights get a posterior: all that require a gradient, or a subset of them; the rest stay fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from dnn2gp.features.engines.layerwise import UseRecorder
from dnn2gp.features.engines.layerwise.places import FlatWeights
from dnn2gp.features.engines.plain_passes import backward
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, take
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import InputError

Subset: TypeAlias = "str | nn.Module | Sequence[str | nn.Module]"

LAST_LAYER = "last layer"


def subset_names(network: Network, subset: object, inputs: Inputs, module: nn.Module) -> list[str]:
    """The names of the weights that `subset` selects, in the order of the network that wraps `module`.

    "last layer" is the layer whose weights are used last in the forward pass; otherwise names of modules or of weights
    as in network.named_modules() and network.named_parameters(), or the modules themselves.
    """
    if isinstance(subset, str) and subset == LAST_LAYER:
        return _last_layer(network, inputs)
    if subset == "":
        raise InputError(f"subset: expected names of layers; got an empty string. {_known(network.layout)}")
    wanted = list(subset) if isinstance(subset, list | tuple | set) else [subset]
    chosen: set[str] = set()
    for entry in wanted:
        chosen |= _matching(network, entry, module)
    if not chosen:
        raise InputError(f"subset: expected at least one layer; got {subset!r}. {_known(network.layout)}")
    return [name for name in network.layout.names if name in chosen]


def _matching(network: Network, entry: object, module: nn.Module) -> set[str]:
    """The weights of one entry of a subset."""
    names = network.layout.names
    if isinstance(entry, nn.Module):
        found = [name for name, part in module.named_modules() if part is entry]
        if not found:
            raise InputError(
                f"subset: expected a module of the network; got a {type(entry).__name__} that is not part of it. "
                f"{_known(network.layout)}"
            )
        entry = found[0]
    if not isinstance(entry, str):
        raise InputError(f"subset: expected names of layers, or modules; got {entry!r}. {_known(network.layout)}")
    matching = {name for name in names if name == entry or name.startswith(f"{entry}.") or entry == ""}
    if not matching:
        raise InputError(f"subset: expected a layer with trainable weights; got {entry!r}. {_known(network.layout)}")
    return matching


@torch.inference_mode(False)
def _last_layer(network: Network, inputs: Inputs) -> list[str]:
    """The layer of the last function that takes weights and that the outputs depend on."""
    flat = network.weights.detach().clone()
    recorder = UseRecorder(FlatWeights(flat))
    with torch.enable_grad():
        with recorder:
            outputs = network(flat.detach().requires_grad_(True), take(inputs, slice(0, 2)))
        for given, results in reversed(recorder.calls):
            reached = [result for result in results if result.requires_grad]
            if reached and _depends(outputs, reached):
                return _layer_of([recorder.weights.extent(weight) for weight in given], network.layout)
    raise InputError(f"subset: the last layer was not found. Give its name. {_known(network.layout)}")


def _depends(outputs: Tensor, results: list[Tensor]) -> bool:
    found = backward(outputs.sum(), results, retain_graph=True, allow_unused=True)
    return any(gradient is not None for gradient in found)


def _layer_of(parts: list[slice], layout: Layout) -> list[str]:
    """All weights of the modules that own these, and of their submodules (such as a parametrisation)."""
    touched = [n for n, own in layout.ranges.items() if any(own.start < p.stop and p.start < own.stop for p in parts)]
    prefixes = {name.rpartition(".")[0] for name in touched}
    inside = [name for name in layout.names if any(prefix and name.startswith(f"{prefix}.") for prefix in prefixes)]
    return [name for name in layout.names if name in {*touched, *inside}]


def _known(layout: Layout) -> str:
    return f"The layers with trainable weights are {list(layout.layers)}, and {LAST_LAYER!r} is the last of them."
