"""The module that a `Network` runs: a private copy of the user's, with frozen weights shared and watched for changes.

A module that cannot be copied is used itself, under a lock.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import local
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dnn2gp.network.eval_mode import Attributes, differentiable_attention, evaluation_mode, set_eval
from dnn2gp.support.errors import NetworkError


@dataclass(frozen=True, eq=False)
class FrozenWeights:
    """Fixed weights by name. They are not copied, so that a small trained part of a large network stays small.

    In-place changes to the user's module affect the shared tensors; torch counts these changes, so they are detected.
    """

    tensors: dict[str, Tensor]
    versions: tuple[int, ...]

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> FrozenWeights:
        """These tensors in their current state."""
        own = {name: tensor.clone() if tensor.is_inference() else tensor for name, tensor in tensors.items()}
        return FrozenWeights(own, tuple(tensor._version for tensor in own.values()))

    def check(self) -> None:
        """Raise a NetworkError if one of them has been changed in place since then."""
        for (name, tensor), version in zip(self.tensors.items(), self.versions, strict=True):
            if tensor._version != version:
                raise NetworkError(
                    f"network: the frozen weight {name!r} was changed in place after the network was converted. "
                    "Frozen weights are shared with your module, not copied. Convert the network again, or convert "
                    "a copy of it in the first place: convert(copy.deepcopy(network), ...)."
                )

    @property
    def num_weights(self) -> int:
        """The number of entries of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle each tensor alone, without the larger tensor that it may be a view of; versions start anew."""
        return FrozenWeights.of, ({name: _alone(tensor) for name, tensor in self.tensors.items()},)

    def __deepcopy__(self, memo: dict[int, object]) -> FrozenWeights:
        """Shared, as with the user's module."""
        return self


def _alone(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


class ModuleOwner(ABC):
    """Calls a module in eval mode with given parameters and buffers, and leaves the module as it was."""

    @abstractmethod
    def call(self, tensors: dict[str, Tensor], args: tuple, kwargs: dict[str, Any]) -> object:
        """What the module's forward returns."""


@final
class PrivateModule(ModuleOwner):
    """Copies of the user's module, one for each thread that calls it.

    All copies share the tensors of the template, which are exchanged in every call and have values only for code that
    keeps a reference of its own to a parameter. A copy therefore costs the structure of the module and nothing else.
    The template itself is never run.
    """

    def __init__(self, template: nn.Module) -> None:
        """Copies of `template`, which must not be used by anyone else."""
        self._template, self._local = template, local()

    @staticmethod
    def of(module: nn.Module, tensors: Mapping[str, Tensor]) -> PrivateModule:
        """Copies of a module with these parameters and buffers instead of its own; raises if it cannot be copied."""
        named = (*module.named_parameters(), *module.named_buffers())
        return PrivateModule(_copied(module, {id(tensor): tensors[name] for name, tensor in named}))

    def call(self, tensors: dict[str, Tensor], args: tuple, kwargs: dict[str, Any]) -> object:
        free: list[_Copy] = self._local.__dict__.setdefault("free", [])  # more than one if a forward pass calls itself
        own = free.pop() if free else _Copy(self._template)
        try:
            return own.call(tensors, args, kwargs)
        finally:
            free.append(own)

    def __reduce__(self) -> tuple[object, ...]:
        return PrivateModule, (self._template,)

    def __deepcopy__(self, memo: dict[int, object]) -> PrivateModule:
        """The same: the template never changes."""
        return self


class _Copy:
    """One copy of a module. Between calls it keeps the parameters that it was last called with.

    Gradient checkpointing calls parts of the module again in the backward pass, when they must find these parameters.
    """

    def __init__(self, template: nn.Module) -> None:
        shared = (*template.parameters(), *template.buffers())
        self._module = _copied(template, {id(tensor): tensor for tensor in shared})
        set_eval(self._module)
        self._attributes, self._kept = Attributes(self._module), False
        places: dict[int, list[tuple[dict, str]]] = {}
        for part in self._module.modules():
            for name, tensor in part._parameters.items():
                places.setdefault(id(tensor), []).append((part._parameters, name))
        self._places = {name: places[id(tensor)] for name, tensor in self._module.named_parameters()}

    def call(self, tensors: dict[str, Tensor], args: tuple, kwargs: dict[str, Any]) -> object:
        if self._kept:  # parts may have been called since
            self._attributes.restore()
        self._kept = True  # until the end of the call: an interrupt may leave anything
        try:
            with differentiable_attention():
                return functional_call(self._module, tensors, args, kwargs)
        finally:
            self._attributes.restore()
            if not torch.is_grad_enabled():
                self._kept = False
            else:
                for name, places in self._places.items():
                    for parameters, key in places:
                        parameters[key] = tensors[name]  # pyright: ignore[reportArgumentType]


@final
class LockedModule(ModuleOwner):
    """The user's own module, one thread at a time, restored after every call: for modules that cannot be copied."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def call(self, tensors: dict[str, Tensor], args: tuple, kwargs: dict[str, Any]) -> object:
        with evaluation_mode(self._module):
            return functional_call(self._module, tensors, args, kwargs)

    def __deepcopy__(self, memo: dict[int, object]) -> LockedModule:
        """The same, because the module cannot be copied."""
        return self


def own_module(module: nn.Module, tensors: Mapping[str, Tensor], run: Callable[[ModuleOwner], object]) -> ModuleOwner:
    """A private copy of the module with these tensors, if a copy works without the original.

    `run` evaluates a forward pass with tensors that require no gradient. Code that refers to the original other
    than through its structure (a closure, a weak reference, a registry) would mix the two, so the copy is tried once.
    """
    originals = (*module.parameters(), *module.buffers())
    try:
        found = PrivateModule.of(module, tensors)
        with torch.enable_grad(), _OriginalsRefused(originals):
            outputs = run(found)
    except Exception:  # whatever is wrong with the copy or the inputs, the original itself decides
        return LockedModule(module)
    reached = _leaves_of_graph(outputs) if isinstance(outputs, Tensor) else set()
    return found if reached.isdisjoint(map(id, originals)) else LockedModule(module)


class _OriginalsRefused(TorchFunctionMode):
    """Raises before a torch function receives one of these tensors."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._ids = {id(tensor) for tensor in tensors}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(id(value) in self._ids for value in tree_leaves((args, kwargs))):
            raise RuntimeError("a tensor of the original module")
        return func(*args, **(kwargs or {}))


def _leaves_of_graph(outputs: Tensor) -> set[int]:
    """The ids of the tensors that a backward pass from the outputs would end in."""
    found, seen, waiting = set(), set(), [outputs.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found.add(id(getattr(node, "variable", None)))
            waiting += [following for following, _ in node.next_functions]
    return found


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy in which the tensors of the memo replace others; results of computations become plain tensors."""
    for part in module.modules():
        _add_results(vars(part), memo, set())
    return copy.deepcopy(module, memo)


def _add_results(value: object, memo: dict[int, Any], seen: set[int]) -> None:
    """Tensors with a graph, which have no deep copy: what old-style weight_norm or a cache keeps on a module."""
    if isinstance(value, Tensor):
        if not value.is_leaf and id(value) not in memo:
            memo[id(value)] = value.detach().clone()
    elif isinstance(value, dict | list | tuple | set) and id(value) not in seen:
        seen.add(id(value))
        for member in value.values() if isinstance(value, dict) else value:
            _add_results(member, memo, seen)
