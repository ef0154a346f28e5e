"""Inputs of a network: a tensor, or a tuple, list or dict of tensors that share their first axis (the examples)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from dnn2gp.errors import InputError

Inputs: TypeAlias = "Tensor | tuple[Tensor, ...] | list[Tensor] | dict[str, Tensor]"


def leaves(inputs: Inputs) -> list[Tensor]:
    """The tensors of the inputs, in order."""
    if isinstance(inputs, Tensor):
        return [inputs]
    return list(inputs.values()) if isinstance(inputs, dict) else list(inputs)


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The same container with `function` applied to each tensor."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, dict):
        return {name: function(leaf) for name, leaf in inputs.items()}
    return type(inputs)(function(leaf) for leaf in inputs)


def check_inputs(inputs: object, what: str = "inputs") -> Inputs:
    """Return `inputs` if it is a container this library reads, with one common number of examples ≥ 1."""
    if isinstance(inputs, dict):
        tensors = list(inputs.values())
    elif isinstance(inputs, tuple | list):
        tensors = list(inputs)
    else:
        tensors = [inputs]
    for leaf in tensors:
        if not isinstance(leaf, Tensor):
            raise InputError(
                f"{what}: expected a torch.Tensor, or a tuple, list or dict of tensors; got {type(leaf).__name__}. "
                "Convert arrays with torch.as_tensor(array)."
            )
        if leaf.ndim == 0:
            raise InputError(f"{what}: expected tensors whose first axis counts the examples; got a 0-d tensor.")
    if not tensors:
        raise InputError(f"{what}: the container is empty; expected at least one tensor.")
    lengths = {len(leaf) for leaf in tensors}
    if len(lengths) > 1:
        raise InputError(f"{what}: all tensors must have the same number of examples; got {sorted(lengths)}.")
    if lengths == {0}:
        raise InputError(f"{what}: there are no examples (first axis of length 0).")
    return inputs  # pyright: ignore[reportReturnType]


def num_examples(inputs: Inputs) -> int:
    """N, the length of the first axis."""
    return len(leaves(inputs)[0])


def take(inputs: Inputs, index: slice | Tensor) -> Inputs:
    """The examples at `index`."""
    return map_inputs(lambda leaf: leaf[index], inputs)


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """One set of inputs from several of the same form."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([leaves(part)[0] for part in parts])
    columns = [torch.cat(column) for column in zip(*(leaves(part) for part in parts), strict=True)]
    if isinstance(first, dict):
        return dict(zip(first, columns, strict=True))
    return type(first)(columns)


def same_form(first: Inputs, second: Inputs) -> bool:
    """Whether two sets of inputs could be concatenated: same container, keys, dtypes and example shapes."""
    if type(first) is not type(second) or (isinstance(first, dict) and list(first) != list(second)):
        return False
    a, b = leaves(first), leaves(second)
    return len(a) == len(b) and all(s.dtype == t.dtype and s.shape[1:] == t.shape[1:] for s, t in zip(a, b, strict=True))
