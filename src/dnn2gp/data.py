"""Data: a pair of tensors, a Dataset or a DataLoader, read once into (inputs, targets)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from dnn2gp.errors import InputError
from dnn2gp.inputs import Inputs, check_inputs, concatenate, leaves, num_examples, same_form
from dnn2gp.progress import track

_BATCH = 256


@dataclass(frozen=True)
class Data:
    """The training set D = {(x_i, y_i)}, i = 1 … N, in memory."""

    inputs: Inputs
    targets: Tensor

    @property
    def num_examples(self) -> int:
        """N."""
        return num_examples(self.inputs)


def read_data(data: object) -> Data:
    """Read (inputs, targets) from a pair of tensors, a Dataset, a DataLoader or another re-iterable of batches."""
    if isinstance(data, Data):
        return data
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[1], Tensor):
        return _checked(data[0], data[1])
    if isinstance(data, TensorDataset):
        return _from_tensors(data)
    if isinstance(data, Dataset) and not isinstance(data, DataLoader):
        data = DataLoader(data, batch_size=_BATCH)
    if isinstance(data, Iterator):
        raise InputError(
            f"data: got a one-shot iterator ({type(data).__name__}), which can be read only once. "
            "Pass a DataLoader, a Dataset, or a pair (inputs, targets)."
        )
    if not isinstance(data, Iterable):
        raise InputError(
            "data: expected a pair (inputs, targets) of tensors, a torch Dataset or a DataLoader; "
            f"got {type(data).__name__}."
        )
    return _from_batches(data)


def _checked(inputs: object, targets: Tensor) -> Data:
    inputs = check_inputs(inputs)
    if targets.ndim == 0 or len(targets) != num_examples(inputs):
        shape = tuple(targets.shape)
        raise InputError(f"data: {num_examples(inputs)} inputs but targets of shape {shape}; one row an example.")
    return Data(inputs, targets)


def _from_tensors(data: TensorDataset) -> Data:
    *inputs, targets = data.tensors
    if not inputs:
        raise InputError("data: the TensorDataset holds one tensor; expected inputs and targets.")
    return _checked(inputs[0] if len(inputs) == 1 else tuple(inputs), targets)


def _from_batches(data: Iterable) -> Data:
    """One pass over the batches, after a probe that two passes begin with the same batch."""
    with _random_state_kept(data):
        _probe_order(data)
        batches = [_batch(batch) for batch in track(data, "reading data", total=_length(data))]
    if not batches:
        raise InputError("data: the loader is empty; it yielded no batch.")
    for inputs, _ in batches:
        if not same_form(inputs, batches[0][0]):
            raise InputError("data: batches differ in container, dtype or example shape; they must be alike.")
    return _checked(concatenate([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches]))


def _length(data: Iterable) -> int | None:
    try:
        return len(data)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def _batch(batch: object) -> tuple[Inputs, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        form = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
        raise InputError(
            f"data: each batch must be a pair (inputs, targets) with a tensor of targets; got {form}. Inputs may be "
            "a tensor, or a tuple, list or dict of tensors; give the DataLoader a collate_fn that returns such a pair."
        )
    return check_inputs(batch[0]), batch[1]


def _probe_order(data: Iterable) -> None:
    first, second = (next(iter(data), None) for _ in range(2))
    if first is None:
        raise InputError("data: the loader is empty; it yielded no batch.")
    (x, y) = _batch(first)
    same = second is not None
    if second is not None:
        (x2, y2) = _batch(second)
        pairs = zip([*leaves(x), y], [*leaves(x2), y2], strict=False)
        same = same_form(x, x2) and all(torch.equal(a, b) for a, b in pairs)
    if not same or isinstance(getattr(data, "sampler", None), RandomSampler):
        raise InputError(
            "data: two passes over the loader do not give the same batches. It may (a) shuffle: pass "
            "DataLoader(..., shuffle=False) or the Dataset itself (loader.dataset); (b) augment at random: switch that "
            "off; (c) read a one-shot stream: pass the Dataset or tensors."
        )


@contextmanager
def _random_state_kept(data: object) -> Iterator[None]:
    """A DataLoader draws a seed from the global generator whenever it is iterated; put it back."""
    generator = getattr(data, "generator", None)
    state = generator.get_state() if isinstance(generator, torch.Generator) else None
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            if state is not None and isinstance(generator, torch.Generator):
                generator.set_state(state)
