"""Data: a pair of tensors, a Dataset or a DataLoader, read once into (inputs, targets)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dnn2gp.network.inputs import (
    Inputs,
    check_inputs,
    check_kind,
    concatenate,
    describe,
    leaves,
    map_inputs,
    num_examples,
    same_form,
)
from dnn2gp.support.errors import InputError
from dnn2gp.support.progress import track
from dnn2gp.support.randomness import global_states_kept

_BATCH = 256
_RANDOM = RandomSampler | SubsetRandomSampler | WeightedRandomSampler
_NOT_BATCHES = Tensor | np.ndarray | Mapping | str | bytes | tuple
_UNSTABLE = (
    "data: expected the same batches in every pass over the loader; got two passes that differ. The loader may (a) "
    "shuffle: pass DataLoader(..., shuffle=False) or the Dataset itself (loader.dataset); (b) augment at random: "
    "switch that off; (c) read a one-shot stream: pass the Dataset or tensors."
)


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
    """Read (inputs, targets) from a pair of tensors, a Dataset, a DataLoader or another re-iterable of batches.

    The result owns its memory: later changes to the user's tensors do not affect it.
    """
    if isinstance(data, Data):
        return data
    if isinstance(data, TensorDataset):
        return _copied(*_split(data))
    if isinstance(data, Dataset):
        return _from_dataset(data)
    if isinstance(data, tuple | list) and len(data) == 2 and not all(isinstance(part, tuple | list) for part in data):
        return _copied(data[0], data[1])
    if isinstance(data, Iterator):
        raise InputError(
            f"data: expected data that can be read more than once; got a one-shot iterator ({type(data).__name__}). "
            "Pass a DataLoader, a Dataset, or a pair (inputs, targets)."
        )
    if not isinstance(data, Iterable) or isinstance(data, _NOT_BATCHES):
        form = f"a tuple of {len(data)}" if isinstance(data, tuple) else type(data).__name__
        raise InputError(
            f"data: expected a pair (inputs, targets) of tensors, a torch Dataset or a DataLoader; got {form}. "
            "Pass e.g. (inputs, targets); group several inputs in a tuple or dict: ((first, second), targets)."
        )
    return _from_batches(data)


def _copied(inputs: object, targets: object) -> Data:
    data = _checked(check_inputs(inputs), targets, "data")
    return Data(map_inputs(_own, data.inputs), _own(data.targets))


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _checked(inputs: Inputs, targets: object, what: str) -> Data:
    if not isinstance(targets, Tensor):
        raise InputError(
            f"{what}: expected targets as a torch.Tensor; got {type(targets).__name__}. "
            "Convert arrays with torch.as_tensor(array)."
        )
    check_kind(targets, f"{what}, targets")
    if targets.ndim == 0 or len(targets) != num_examples(inputs):
        raise InputError(
            f"{what}: expected one target for each of the {num_examples(inputs)} inputs; got targets of shape "
            f"{tuple(targets.shape)}. Pass inputs and targets of the same examples, in the same order."
        )
    return Data(inputs, targets)


def _split(data: TensorDataset) -> tuple[Inputs, Tensor]:
    *inputs, targets = data.tensors
    if not inputs:
        raise InputError(
            "data: expected a TensorDataset of inputs and targets; got one with a single tensor. Add the targets."
        )
    return inputs[0] if len(inputs) == 1 else tuple(inputs), targets


def _from_dataset(data: Dataset) -> Data:
    try:
        return _from_batches(DataLoader(data, batch_size=_BATCH))
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"data: the examples of the Dataset could not be put into batches ({error}). Make them tensors of "
            "the same shape, or pass a DataLoader(dataset, collate_fn=...) that combines them."
        ) from error


def _from_batches(data: Iterable) -> Data:
    """One pass over the batches, after a check that two passes start with the same batch."""
    with _random_states_kept(data):
        _probe_order(data)
        batches = [_batch(*item) for item in enumerate(track(data, "reading data", total=_length(data)))]
    for position, batch in enumerate(batches):
        _check_alike(position, "inputs", batches[0].inputs, batch.inputs)
        _check_alike(position, "targets", batches[0].targets, batch.targets)
    return Data(
        map_inputs(torch.detach, concatenate([batch.inputs for batch in batches])),
        torch.cat([batch.targets for batch in batches]).detach(),
    )


def _check_alike(position: int, what: str, first: Inputs, other: Inputs) -> None:
    if not same_form(first, other):
        raise InputError(
            f"data: expected all batches to have the same container, dtype and example shape; the {what} of batch 0 "
            f"are {describe(first)}, but those of batch {position} are {describe(other)}. Pad or crop the examples "
            "to one shape."
        )


def _length(data: Iterable) -> int | None:
    try:
        return len(data)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def _batch(position: int, batch: object) -> Data:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        form = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
        raise InputError(
            f"data: expected each batch to be a pair (inputs, targets); got {form} in batch {position}. Inputs may be "
            "a tensor, or a tuple, list or dict of tensors; give the DataLoader a collate_fn that returns such a pair."
        )
    where = f"data, batch {position}"
    return _checked(check_inputs(batch[0], f"{where}, inputs"), batch[1], where)


def _probe_order(data: Iterable) -> None:
    if _shuffles(data):
        raise InputError(_UNSTABLE)
    if isinstance(data, DataLoader) and data.drop_last and not isinstance(data.dataset, IterableDataset):
        raise InputError(
            "data: expected a loader that reads all examples; got drop_last=True, which silently drops some. Pass "
            "DataLoader(..., drop_last=False), or the Dataset itself (loader.dataset)."
        )
    first, second = (next(iter(data), None) for _ in range(2))
    if first is None:
        raise InputError(
            "data: expected at least one batch; got an empty loader. Check len(dataset), and drop_last, which "
            "discards an incomplete batch."
        )
    if second is None or not _same(_batch(0, first), _batch(0, second)):
        raise InputError(_UNSTABLE)


def _shuffles(data: Iterable) -> bool:
    if not isinstance(data, DataLoader):
        return False
    inner = data.batch_sampler.sampler if isinstance(data.batch_sampler, BatchSampler) else None
    return isinstance(data.sampler, _RANDOM) or isinstance(inner, _RANDOM)


def _same(first: Data, second: Data) -> bool:
    pairs = zip([*leaves(first.inputs), first.targets], [*leaves(second.inputs), second.targets], strict=False)
    return same_form(first.inputs, second.inputs) and all(_equal(a, b) for a, b in pairs)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether the values are equal, with NaN equal to NaN; a later check reports NaNs by example."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


@contextmanager
def _random_states_kept(data: Iterable) -> Iterator[None]:
    """A DataLoader draws a seed from its generator or the global one whenever it is iterated; restore both."""
    generator = data.generator if isinstance(data, DataLoader) else None
    state = None if generator is None else generator.get_state()
    with global_states_kept():
        try:
            yield
        finally:
            if generator is not None and state is not None:
                generator.set_state(state)
