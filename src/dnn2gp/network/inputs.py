"""Inputs of a network: a tensor, or a tuple, list or dict of tensors that share their first axis (the examples)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dnn2gp.support.errors import InputError

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
    mapped = [function(leaf) for leaf in inputs]
    return tuple(mapped) if isinstance(inputs, tuple) else mapped


def all_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite. A finite sum, which is fast, proves it; otherwise all entries are checked."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def check_inputs(inputs: object, what: str = "inputs") -> Inputs:
    """Return `inputs` if it is a supported container whose tensors have the same number of examples ≥ 1."""
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)
    tensors: list[Any] = [inputs]
    if isinstance(inputs, dict | tuple | list):
        tensors = list(inputs.values()) if isinstance(inputs, dict) else list(inputs)
    for leaf in tensors:
        if not isinstance(leaf, Tensor):
            raise InputError(
                f"{what}: expected a torch.Tensor, or a tuple, list or dict of tensors; got {type(leaf).__name__}. "
                "Convert arrays with torch.as_tensor(array)."
            )
        check_kind(leaf, what)
        if leaf.ndim == 0:
            raise InputError(
                f"{what}: expected tensors whose first axis is the examples; got a 0-d tensor. "
                "For a single example, use tensor.unsqueeze(0)."
            )
    if not tensors:
        raise InputError(
            f"{what}: expected at least one tensor; got an empty {type(inputs).__name__}. Pass the inputs of the "
            "network."
        )
    lengths = {len(leaf) for leaf in tensors}
    if len(lengths) > 1:
        raise InputError(
            f"{what}: expected tensors with the same number of examples (their first axis); got {sorted(lengths)}. "
            "Pass the tensors of the same examples."
        )
    if lengths == {0}:
        raise InputError(f"{what}: expected at least one example; got none (the first axis has length 0).")
    return inputs  # pyright: ignore[reportReturnType]


def check_kind(tensor: Tensor, what: str) -> None:
    """Refuse tensors that are not dense, and places where results would have no data of their own.

    Those are a default device of meta, and functions that torch.func transforms, whose tensors stand for several.
    """
    check_dense(tensor, what)
    if torch.empty(0).is_meta:
        raise InputError(
            f"{what}: expected a default device that holds data; got meta. Call dnn2gp outside of torch.device('meta') "
            "and after torch.set_default_device('cpu')."
        )
    if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
        raise InputError(
            f"{what}: expected a call outside of torch.func; got one inside of vmap, grad or another transform. "
            "Pass all inputs at once, and differentiate with torch.autograd: inputs.requires_grad_()."
        )


def check_dense(tensor: Tensor, what: str) -> None:
    """Refuse tensors without data or without strides."""
    kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else None
    kind = "sparse" if kind is None and tensor.layout != torch.strided else kind
    if kind is not None:
        advice = {"meta": "Load its values: it has a shape, but no data", "sparse": "Use tensor.to_dense()"}
        raise InputError(
            f"{what}: expected a dense tensor with data; got a {kind} tensor. {advice.get(kind, 'Convert it')}."
        )


def describe(inputs: Inputs) -> str:
    """The container, dtypes and shapes of inputs, for messages."""
    if isinstance(inputs, Tensor):
        return _describe_leaf(inputs)
    if isinstance(inputs, dict):
        return "{" + ", ".join(f"{name!r}: {_describe_leaf(leaf)}" for name, leaf in inputs.items()) + "}"
    return f"a {type(inputs).__name__} of [{', '.join(map(_describe_leaf, inputs))}]"


def differentiable(inputs: Inputs) -> bool:
    """Whether results should carry gradients with respect to these inputs: they require one, and gradients are on."""
    return torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves(inputs))


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
    return tuple(columns) if isinstance(first, tuple) else columns


def same_form(first: Inputs, second: Inputs) -> bool:
    """Whether two sets of inputs could be concatenated: same container, keys, dtypes and example shapes."""
    if type(first) is not type(second) or (isinstance(first, dict) and list(first) != list(second)):
        return False
    forms = [[(leaf.dtype, leaf.shape[1:]) for leaf in leaves(inputs)] for inputs in (first, second)]
    return forms[0] == forms[1]


def repack(inputs: Inputs, form: Inputs) -> Inputs | None:
    """`inputs` in the container of `form` (tuple or list, order of the keys), or None if they do not fit into it."""
    if isinstance(inputs, dict) and isinstance(form, dict):
        return {name: inputs[name] for name in form} if set(inputs) == set(form) else None
    if isinstance(inputs, tuple | list) and isinstance(form, tuple | list):
        return (tuple(inputs) if isinstance(form, tuple) else list(inputs)) if len(inputs) == len(form) else None
    return inputs if isinstance(inputs, Tensor) and isinstance(form, Tensor) else None


def _describe_leaf(leaf: Tensor) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} of shape {tuple(leaf.shape)}"
