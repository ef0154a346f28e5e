"""Running a user's module: in eval mode, with kernels that can be differentiated, and leaving no trace on it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase

_EMPTY: dict = {}


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Eval mode and differentiable attention kernels inside the block; every flag and attribute as it was after it."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with _attributes_kept(module):
        try:
            for part in module.modules():
                part.training = False
            torch.backends.mha.set_fastpath_enabled(False)
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)


@contextmanager
def statistics_mode(module: nn.Module) -> Iterator[None]:
    """As `evaluation_mode`, but for normalisation layers that were in train mode and keep running statistics: a forward
    pass in here updates these, from the statistics of the batch."""
    training = [part for part in module.modules() if part.training and keeps_statistics(part)]
    with evaluation_mode(module):
        for part in training:
            part.training = True
        yield


def keeps_statistics(part: nn.Module) -> bool:
    """Whether a layer is a normalisation with running statistics (BatchNorm, InstanceNorm)."""
    return isinstance(part, _NormBase) and part.track_running_stats


@contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """Put back what `forward` sets on the module (activations, counters, lazy masks), which would be tensors of a
    transform that has ended: the attributes of each part, and the contents of the dicts and lists among them."""
    dicts: list[tuple[dict, dict]] = []
    lists: list[tuple[list, list]] = []
    for part in module.modules():
        attributes = vars(part)
        dicts.append((attributes, attributes.copy()))
        for value in attributes.values():
            kind = type(value)
            if kind is dict or kind is OrderedDict:
                dicts.append((value, value.copy() if value else _EMPTY))
            elif kind is list:
                lists.append((value, value.copy()))
    try:
        yield
    finally:
        for live, before in dicts:
            if live.keys() != before.keys():
                for name in live.keys() - before.keys():
                    del live[name]
            if before:
                live.update(before)
        for live, before in lists:
            live[:] = before
