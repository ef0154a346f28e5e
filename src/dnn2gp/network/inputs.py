"""Inputs of a network: a tensor, or a tuple, list or dict of tensors that share their first axis (the examples).

Inputs that do not fit into memory are `OnDemand`: `take` and `in_parts` read some of their examples at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from dnn2gp.support.errors import InputError

Inputs: TypeAlias = "Tensor | tuple[Tensor, ...] | list[Tensor] | dict[str, Tensor] | OnDemand"


class OnDemand(ABC):
    """N examples that are not in memory; `take` and `in_parts` read some of them.

    `streamed.py` reads them from a Dataset; `views.py` derives them from other inputs.
    """

    @property
    @abstractmethod
    def form(self) -> Inputs:
        """The first example, in memory, with the same container, dtypes and shapes as all the others."""

    @property
    @abstractmethod
    def num_examples(self) -> int:
        """N."""

    @property
    @abstractmethod
    def most(self) -> int:
        """The largest number of examples that should be in memory at once."""

    @property
    @abstractmethod
    def checksums(self) -> Int[Tensor, " N"]:
        """One number per example, which changes if the example does (`checksums.py`)."""

    @abstractmethod
    def read(self, index: slice | Tensor) -> Inputs:
        """The examples at `index`, in memory."""

    @abstractmethod
    def passed(self, parts: Sequence[slice | Tensor]) -> Generator[Inputs, None, None]:
        """These parts one after the other; while one is used, the next may already be read.

        Closing the iterator ends the pass.
        """


def leaves(inputs: Inputs) -> list[Tensor]:
    """The tensors of inputs in memory, in order."""
    if isinstance(inputs, Tensor):
        return [inputs]
    if isinstance(inputs, OnDemand):
        raise TypeError("Inputs that are read on demand have no tensors. Use `take` or `in_parts` first.")
    return list(inputs.values()) if isinstance(inputs, dict) else list(inputs)


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The same container with `function` applied to each tensor."""
    return rebuilt([function(leaf) for leaf in leaves(inputs)], inputs)


def rebuilt(tensors: list[Tensor], form: Inputs) -> Inputs:
    """These tensors in the container of `form`; the inverse of `leaves`."""
    if isinstance(form, Tensor):
        return tensors[0]
    if isinstance(form, dict):
        return dict(zip(form, tensors, strict=True))
    return tuple(tensors) if isinstance(form, tuple) else tensors


def detached(inputs: Inputs) -> Inputs:
    """The same inputs without their graph."""
    return inputs if isinstance(inputs, OnDemand) else map_inputs(Tensor.detach, inputs)


def example_of(inputs: Inputs) -> Inputs:
    """Inputs of the same form that are in memory: at least the first example."""
    return inputs.form if isinstance(inputs, OnDemand) else inputs


def all_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite. A finite sum, which is fast, proves it; otherwise all entries are checked."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def check_finite(inputs: Inputs, first: int = 0) -> None:
    """Reject NaN and infinity; the message counts examples from `first`."""
    for leaf in leaves(inputs):
        if leaf.is_floating_point() and not all_finite(leaf):
            row = first + int((~leaf.isfinite()).reshape(len(leaf), -1).any(1).nonzero()[0])
            raise InputError(
                f"inputs: expected finite values; got NaN or infinity in example {row}. Remove or impute such examples."
            )


def check_inputs(inputs: object, what: str = "inputs") -> Inputs:
    """Return `inputs` if it is a supported container whose tensors have the same number of examples ≥ 1."""
    if isinstance(inputs, OnDemand):
        return inputs
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
    inputs = example_of(inputs)
    if isinstance(inputs, Tensor):
        return _describe_leaf(inputs)
    if isinstance(inputs, dict):
        return "{" + ", ".join(f"{name!r}: {_describe_leaf(leaf)}" for name, leaf in inputs.items()) + "}"
    return f"a {type(inputs).__name__} of [{', '.join(map(_describe_leaf, leaves(inputs)))}]"


def differentiable(inputs: Inputs) -> bool:
    """Whether results should carry gradients with respect to these inputs: they require one, and gradients are on."""
    return torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves(example_of(inputs)))


def num_examples(inputs: Inputs) -> int:
    """N, the length of the first axis."""
    return inputs.num_examples if isinstance(inputs, OnDemand) else len(leaves(inputs)[0])


def most_at_once(inputs: Inputs) -> int:
    """The largest number of examples to take at once; all of them, if the inputs are in memory."""
    return min(inputs.num_examples, inputs.most) if isinstance(inputs, OnDemand) else num_examples(inputs)


def take(inputs: Inputs, index: slice | Tensor) -> Inputs:
    """The examples at `index`, in memory."""
    return inputs.read(index) if isinstance(inputs, OnDemand) else map_inputs(lambda leaf: leaf[index], inputs)


def positions(index: slice | Tensor, count: int) -> Int[Tensor, " n"]:
    """The positions of the examples at `index`, out of `count` examples."""
    return torch.arange(count, device="cpu")[index.cpu() if isinstance(index, Tensor) else index]


def first_few(inputs: Inputs, count: int) -> Inputs:
    """The first `count` examples, in memory; repeated if there are fewer."""
    return take(inputs, torch.arange(count, device="cpu") % num_examples(inputs))


def passed(inputs: Inputs, parts: Sequence[slice | Tensor]) -> Generator[Inputs, None, None]:
    """The examples of several parts, in memory, one part after the other; close it if it is not exhausted."""
    if isinstance(inputs, OnDemand):
        yield from inputs.passed(parts)
        return
    for part in parts:
        yield take(inputs, part)


def in_parts(inputs: Inputs, parts: Sequence[slice]) -> Generator[tuple[slice, Inputs], None, None]:
    """(part, its examples in memory) for consecutive parts: one pass over the data.

    Iterate over it in a `for` statement. Worker processes that read ahead are closed however the loop ends.
    """
    with closing(passed(inputs, parts)) as several:
        for part in parts:
            yield part, next(several)


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """One set of inputs from several of the same form."""
    columns = [torch.cat(column) for column in zip(*(leaves(part) for part in parts), strict=True)]
    return rebuilt(columns, parts[0])


def same_form(first: Inputs, second: Inputs) -> bool:
    """Whether two sets of inputs could be concatenated: same container, keys, dtypes and example shapes."""
    first, second = example_of(first), example_of(second)
    if type(first) is not type(second) or _keys(first) != _keys(second):
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


def _keys(inputs: Inputs) -> list[str]:
    return list(inputs) if isinstance(inputs, dict) else []


def _describe_leaf(leaf: Tensor) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} of shape {tuple(leaf.shape)}"
