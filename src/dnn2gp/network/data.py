"""Data: a pair of tensors, a Dataset or a DataLoader, as (inputs, targets)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

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

from dnn2gp.network.batches import UNSTABLE, Data, check_alike, checked_batch, checked_pair, same_batch
from dnn2gp.network.inputs import Inputs, check_inputs, concatenate, leaves, map_inputs
from dnn2gp.network.source import Source
from dnn2gp.network.streamed import streamed
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import require
from dnn2gp.support.progress import track
from dnn2gp.support.randomness import global_states_kept

_BATCH = 256
_RANDOM = RandomSampler | SubsetRandomSampler | WeightedRandomSampler
_INSTEAD = (
    "Such data can only be read as a whole. Pass a Dataset with __getitem__ and __len__, or a DataLoader of one: these "
    "can be read in parts."
)
_NOT_BATCHES = Tensor | np.ndarray | Mapping | str | bytes | tuple


def read_data(data: object, budget: int | None = None) -> Data:
    """Read (inputs, targets) from a pair of tensors, a Dataset, a DataLoader or another re-iterable of batches.

    The result owns its memory: later changes to the user's tensors do not affect it. With a memory budget, a Dataset or
    DataLoader that takes a large share of it is not read into memory: its inputs are read on demand (`streamed.py`).
    """
    if isinstance(data, Data):
        return data
    if isinstance(data, TensorDataset):
        return _copied(*_split(data))
    if isinstance(data, Dataset):
        return _large(data, budget) or _from_dataset(data, budget)
    if isinstance(data, tuple | list) and len(data) == 2 and not all(isinstance(part, tuple | list) for part in data):
        return _copied(data[0], data[1])
    if isinstance(data, Iterator):
        raise InputError(
            f"data: expected data that can be read more than once; got a one-shot iterator ({type(data).__name__}). "
            "Pass a DataLoader, a Dataset, or a pair (inputs, targets)."
        )
    if isinstance(data, DataLoader) and (found := _large(data, budget)) is not None:
        return found
    if not isinstance(data, Iterable) or isinstance(data, _NOT_BATCHES):
        form = f"a tuple of {len(data)}" if isinstance(data, tuple) else type(data).__name__
        raise InputError(
            f"data: expected a pair (inputs, targets) of tensors, a torch Dataset or a DataLoader; got {form}. "
            "Pass e.g. (inputs, targets); group several inputs in a tuple or dict: ((first, second), targets)."
        )
    return _from_batches(data, budget)


def _copied(inputs: object, targets: object) -> Data:
    data = checked_pair(check_inputs(inputs), targets, "data")
    return Data(map_inputs(_own, data.inputs), _own(data.targets))


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _split(data: TensorDataset) -> tuple[Inputs, Tensor]:
    *inputs, targets = data.tensors
    if not inputs:
        raise InputError(
            "data: expected a TensorDataset of inputs and targets; got one with a single tensor. Add the targets."
        )
    return inputs[0] if len(inputs) == 1 else tuple(inputs), targets


def _large(data: Dataset | DataLoader, budget: int | None) -> Data | None:
    """The data, read on demand, if they would take a large share of the budget and can be read so; otherwise None."""
    if budget is None:
        return None
    with _random_states_kept(data):
        _check_order(data)
        source = Source.of(data)
        return None if source is None else streamed(source, budget)


def _from_dataset(data: Dataset, budget: int | None) -> Data:
    try:
        return _from_batches(DataLoader(data, batch_size=_BATCH), budget)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"data: the examples of the Dataset could not be put into batches ({error}). Make them tensors of "
            "the same shape, or pass a DataLoader(dataset, collate_fn=...) that combines them."
        ) from error


def _from_batches(data: Iterable, budget: int | None) -> Data:
    """One pass over the batches, after a check that two passes start with the same batch."""
    with _random_states_kept(data):
        _probe_order(data)
        batches = _collected(data, budget)
    return Data(
        map_inputs(torch.detach, concatenate([batch.inputs for batch in batches])),
        torch.cat([batch.targets for batch in batches]).detach(),
    )


def _collected(data: Iterable, budget: int | None) -> list[Data]:
    """All batches; an error if they and a copy of them do not fit into the budget."""
    batches: list[Data] = []
    size = 0
    for position, item in enumerate(track(data, "reading data", total=_length(data))):
        batch = checked_batch(position, item)
        check_alike(position, batches[0] if batches else batch, batch)
        batches.append(batch)
        size += sum(leaf.nbytes for leaf in (*leaves(batch.inputs), batch.targets))
        if budget is not None:
            require(2 * size, budget, f"The first {position + 1} batches of the data, with a copy of them,", _INSTEAD)
    return batches


def _length(data: Iterable) -> int | None:
    try:
        return len(data)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def _check_order(data: object) -> None:
    """Reject loaders that shuffle, or that do not read all examples."""
    if _shuffles(data):
        raise InputError(UNSTABLE)
    if isinstance(data, DataLoader) and data.drop_last and not isinstance(data.dataset, IterableDataset):
        raise InputError(
            "data: expected a loader that reads all examples; got drop_last=True, which silently drops some. Pass "
            "DataLoader(..., drop_last=False), or the Dataset itself (loader.dataset)."
        )


def _probe_order(data: Iterable) -> None:
    _check_order(data)
    first, second = (next(iter(data), None) for _ in range(2))
    if first is None:
        raise InputError(
            "data: expected at least one batch; got an empty loader. Check len(dataset), and drop_last, which "
            "discards an incomplete batch."
        )
    if second is None or not same_batch(checked_batch(0, first), checked_batch(0, second)):
        raise InputError(UNSTABLE)


def _shuffles(data: object) -> bool:
    if not isinstance(data, DataLoader):
        return False
    inner = data.batch_sampler.sampler if isinstance(data.batch_sampler, BatchSampler) else None
    return isinstance(data.sampler, _RANDOM) or isinstance(inner, _RANDOM)


@contextmanager
def _random_states_kept(data: object) -> Iterator[None]:
    """A DataLoader draws a seed from its generator or the global one whenever it is iterated; restore both."""
    generator = data.generator if isinstance(data, DataLoader) else None
    state = None if generator is None else generator.get_state()
    with global_states_kept():
        try:
            yield
        finally:
            if generator is not None and state is not None:
                generator.set_state(state)
