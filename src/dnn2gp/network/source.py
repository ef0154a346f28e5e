"""A Dataset that can be read at any index, either in this process or ahead of time by the workers of a DataLoader."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, default_collate

from dnn2gp.network.batches import UNSTABLE
from dnn2gp.support.errors import ChangedDataError, InputError
from dnn2gp.support.randomness import global_states_kept


@final
@dataclass(frozen=True)
class Workers:
    """The settings of a DataLoader that concern its worker processes."""

    count: int = 0
    pin_memory: bool = False
    timeout: int | float = 0
    init: Callable[[int], None] | None = None
    start_method: str | None = None

    @staticmethod
    def of(loader: DataLoader) -> Workers:
        """Those of a loader."""
        context = loader.multiprocessing_context
        method = None if context is None else context.get_start_method()
        return Workers(loader.num_workers, loader.pin_memory, loader.timeout, loader.worker_init_fn, method)


@final
@dataclass(frozen=True, eq=False)
class Source:
    """The examples of a Dataset in a fixed order, and the way they are combined into batches."""

    dataset: Dataset
    order: Int[Tensor, " N"] | None
    """The index of each example in the dataset; None for 0 … N − 1."""
    collate: Callable[[list[Any]], object]
    workers: Workers

    @staticmethod
    def of(data: Dataset | DataLoader) -> Source | None:
        """The source behind a Dataset or DataLoader; None if its examples have no index or their number is unknown."""
        loader = data if isinstance(data, DataLoader) else None
        dataset: Any = data if loader is None else loader.dataset
        if (
            isinstance(dataset, IterableDataset)
            or not hasattr(dataset, "__getitem__")
            or not hasattr(dataset, "__len__")
        ):
            return None
        if loader is None:
            return Source(dataset, None, default_collate, Workers())
        if loader.batch_sampler is None:
            return None
        usual = _reads_all(loader.batch_sampler, len(dataset))
        order = None if usual else _order(loader)
        if not usual and order is None:
            return None
        return Source(dataset, order, loader.collate_fn, Workers.of(loader))

    @property
    def num_examples(self) -> int:
        """N."""
        return len(self.dataset) if self.order is None else len(self.order)  # pyright: ignore[reportArgumentType]

    def batches(self, parts: Sequence[Int[Tensor, " _"]]) -> Generator[object, None, None]:
        """The batch of each part, as `collate` returns it; close it if it is not exhausted.

        With workers, the dataset is never touched in this process: workers would share the files that it opens here.
        Each worker reads one part ahead.
        """
        indices = [(part if self.order is None else self.order[part]).tolist() for part in parts]
        if self.workers.count == 0:
            yield from map(self._read, indices)
            return
        batches = iter(self._loader(indices))
        try:
            for index in indices:
                yield _explained(lambda: next(batches), index)
        finally:
            _close(batches)

    def _read(self, index: list[int]) -> object:
        """One batch, read in this process with random numbers of its own."""
        with global_states_kept():
            torch.seed()
            random.seed()
            np.random.seed()
            several = getattr(self.dataset, "__getitems__", None)
            if several is not None:
                return _explained(lambda: self.collate(several(index)), index)
            examples = [_explained(lambda one=one: self.dataset[one], [one]) for one in index]
            return _explained(lambda: self.collate(examples), index)

    def _loader(self, indices: list[list[int]]) -> DataLoader:
        workers = self.workers
        generator = torch.Generator()
        generator.seed()
        return DataLoader(
            self.dataset,
            batch_sampler=indices,  # pyright: ignore[reportArgumentType]
            collate_fn=self.collate,
            num_workers=min(workers.count, len(indices)),
            pin_memory=workers.pin_memory,
            timeout=workers.timeout,
            worker_init_fn=workers.init,
            multiprocessing_context=workers.start_method,
            prefetch_factor=1,
            generator=generator,
        )


def _reads_all(batches: object, count: int) -> bool:
    """Whether these batches are known to hold the examples 0 … N − 1, in this order.

    `DataLoader.sampler` does not say: it is a SequentialSampler beside every batch_sampler of the user.
    """
    if type(batches) is not BatchSampler or batches.drop_last:
        return False
    return type(batches.sampler) is SequentialSampler and len(batches.sampler) == count


def _order(loader: DataLoader) -> Int[Tensor, " N"] | None:
    """The indices in the order of the loader's sampler; None if they are not integers."""
    first, second = ([index for batch in loader.batch_sampler or () for index in batch] for _ in range(2))
    if not all(map(_is_whole, (*first, *second))):
        return None
    order, again = ([int(index) for index in each] for each in (first, second))
    if order != again:
        raise ChangedDataError(UNSTABLE)
    return torch.tensor(order, dtype=torch.int64)


def _is_whole(index: object) -> bool:
    """Whether an index is one integer, of Python, NumPy or torch."""
    if isinstance(index, Tensor):
        return index.ndim == 0 and not (index.is_floating_point() or index.is_complex())
    return isinstance(index, int | np.integer)


def _explained(read: Callable[[], object], index: list[int]) -> object:
    """What the user's code returns, or an error that says for which examples it failed."""
    try:
        return read()
    except (InputError, MemoryError):
        raise
    except Exception as error:
        several = f"examples {min(index)} to {max(index)} (a batch of {len(index)})"
        what = f"example {index[0]}" if len(index) == 1 else several
        raise InputError(
            f"data: {what} of the Dataset could not be read: {type(error).__name__}: {error}. Make sure that "
            "dataset[i] works for every i, and that the examples can be combined into batches: tensors of the same "
            "shape, or a DataLoader(dataset, collate_fn=...) that combines them."
        ) from error


def _close(batches: object) -> None:
    """End the worker processes of a loader's iterator."""
    shutdown = getattr(batches, "_shutdown_workers", None)
    if shutdown is not None:
        shutdown()
