"""A copy of a network with new random weights, for a second start of tuning."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from inspect import Parameter, signature

import torch
from torch import Tensor, nn

from dnn2gp.support.randomness import global_states_kept


def fresh_copy(network: nn.Module, seed: int) -> nn.Module:
    """A copy whose trainable weights are drawn anew; buffers and other weights stay as they are.

    Modules with `reset_parameters()` draw their weights as they did at first. The entries of all other weights are
    shuffled, so that they keep their scale and forget what they have learned. Global generators are not changed.
    """
    copy = deepcopy(network)
    before = {name: tensor.detach().clone() for name, tensor in _tensors(copy).items()}
    trainable = {name: weight for name, weight in copy.named_parameters() if weight.requires_grad}
    with global_states_kept(), torch.no_grad():
        torch.manual_seed(seed)
        for module in copy.modules():
            if (reset := _resetter(module)) is not None:
                reset()
        for name, tensor in _tensors(copy).items():
            if name not in trainable:
                tensor.copy_(before[name])
        for name, weight in trainable.items():
            if torch.equal(weight, before[name]):
                weight.copy_(_shuffled(weight))
    return copy


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _resetter(module: nn.Module) -> Callable[[], object] | None:
    """`reset_parameters` of a module, if it has one that needs no arguments."""
    reset = getattr(module, "reset_parameters", None)
    if not callable(reset):
        return None
    needed = [each for each in signature(reset).parameters.values() if each.default is Parameter.empty]
    return None if any(each.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for each in needed) else reset


def _shuffled(weight: Tensor) -> Tensor:
    return weight.flatten()[torch.randperm(weight.numel()).to(weight.device)].reshape(weight.shape)
