"""Which weights get a posterior: all that require a gradient, or a subset of them; the rest stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import nn

from dnn2gp.errors import InputError
from dnn2gp.features.layerwise import Recorder
from dnn2gp.features.layerwise.weights import FlatWeights
from dnn2gp.inputs import Inputs, take
from dnn2gp.layout import Layout
from dnn2gp.network import Network

Subset: TypeAlias = "str | nn.Module | Sequence[str | nn.Module]"

LAST_LAYER = "last layer"


def subset_names(network: Network, subset: object, inputs: Inputs) -> list[str]:
    """The names of the weights that `subset` means, in the order of the network.

    "last layer" is the layer whose weights are used last in the forward pass; otherwise names of modules or of weights
    as in network.named_modules() and network.named_parameters(), or the modules themselves.
    """
    if isinstance(subset, str) and subset == LAST_LAYER:
        return _last_layer(network, inputs)
    wanted = list(subset) if isinstance(subset, list | tuple | set) else [subset]
    chosen: set[str] = set()
    for entry in wanted:
        chosen |= _matching(network, entry)
    if not chosen:
        raise InputError(f"subset: expected at least one layer; got {subset!r}. {_known(network.layout)}")
    return [name for name in network.layout.names if name in chosen]


def _matching(network: Network, entry: object) -> set[str]:
    """The weights of one entry of a subset."""
    names = network.layout.names
    if isinstance(entry, nn.Module):
        found = [name for name, part in network.module.named_modules() if part is entry]
        if not found:
            raise InputError(f"subset: {type(entry).__name__} is not a part of the network. {_known(network.layout)}")
        entry = found[0]
    if not isinstance(entry, str):
        raise InputError(f"subset: expected names of layers, or modules; got {entry!r}. {_known(network.layout)}")
    matching = {name for name in names if name == entry or name.startswith(f"{entry}.") or entry == ""}
    if not matching:
        raise InputError(f"subset: no trainable weight belongs to {entry!r}. {_known(network.layout)}")
    return matching


@torch.inference_mode(False)
def _last_layer(network: Network, inputs: Inputs) -> list[str]:
    flat = network.weights.detach().clone()
    recorder = Recorder(FlatWeights(flat))
    with torch.enable_grad(), recorder:
        network(flat.detach().requires_grad_(True), take(inputs, slice(0, 1)))
    if not recorder.uses:
        raise InputError(f"subset: the last layer was not found; name it. {_known(network.layout)}")
    start = recorder.uses[-1][0].parts[0].start
    last = next(name for name, part in network.layout.ranges.items() if part.start <= start < part.stop)
    layer = last.rpartition(".")[0]
    return [name for name in network.layout.names if name.rpartition(".")[0] == layer]


def _known(layout: Layout) -> str:
    return f"The layers with trainable weights are {list(layout.layers)}, and {LAST_LAYER!r} is the last of them."
