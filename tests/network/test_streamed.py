"""Datasets that are read on demand: every pass has the same examples or raises an error, and leaves no workers."""

from __future__ import annotations

import pickle
from copy import deepcopy

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, Subset

import dnn2gp.network.streamed as streamed_data
from dnn2gp.network.checksums import checksums
from dnn2gp.network.data import read_data
from dnn2gp.network.inputs import Inputs, OnDemand, in_parts, leaves, num_examples, same_form, take
from dnn2gp.network.streamed import Streamed
from dnn2gp.network.views import Beside, Converted, joined
from dnn2gp.support.errors import ChangedDataError, InputError, MemoryBudgetError
from dnn2gp.support.memory import chunks

BUDGET = 10**9
N = 23


class Rows(Dataset):
    """The rows of x, each packed and changed by `pack`."""

    def __init__(self, pack=lambda index, x: x, count: int = N) -> None:
        self.x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.y, self.pack = torch.arange(count), pack

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int):
        return self.pack(index, self.x[index]), self.y[index]


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    """Stream even the smallest data, five examples at a time; keep only the first two in memory."""
    monkeypatch.setattr(streamed_data, "_SMALL", 0.0)
    monkeypatch.setattr(streamed_data, "_MOST", 5)
    monkeypatch.setattr(streamed_data, "_KEPT", 2)


def children() -> set[int]:
    """The processes that this one has started."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(autouse=True)
def others():
    """The processes that earlier tests have left, such as a fork server; there are no more afterwards."""
    before = children()
    yield before
    assert children() <= before


def all_of(inputs: Inputs, size: int = 4) -> list[Tensor]:
    """Every example, in one pass."""
    found = [leaves(own) for _, own in in_parts(inputs, list(chunks(num_examples(inputs), size)))]
    return [torch.cat(column) for column in zip(*found, strict=True)]


PACKED = {
    "tensors": lambda index, x: x,
    "tuples": lambda index, x: (x, x[:1]),
    "dicts": lambda index, x: {"a": x, "b": index},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", PACKED)
def test_the_examples_of_any_form_in_any_order(form, workers):
    dataset = Rows(PACKED[form])
    expected = read_data(dataset)
    found = read_data(DataLoader(dataset, batch_size=7, num_workers=workers), BUDGET)
    assert isinstance(found.inputs, Streamed)
    assert found.num_examples == N
    assert same_form(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)
    assert all(map(torch.equal, all_of(found.inputs), leaves(expected.inputs)))
    for index in (torch.tensor([22, 3, 0, 3]), slice(20, None), slice(0, 2)):
        assert all(map(torch.equal, leaves(take(found.inputs, index)), leaves(take(expected.inputs, index))))


def test_one_example():
    data = read_data(Rows(count=1), BUDGET)
    assert isinstance(data.inputs, Streamed)
    assert torch.equal(all_of(data.inputs)[0], Rows(count=1).x)


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_with_a_fixed_order(workers):
    order = [4, 2, 20, 7, 7, 1]
    data = read_data(DataLoader(Rows(), sampler=order, batch_size=4, num_workers=workers), BUDGET)
    assert torch.equal(all_of(data.inputs)[0], Rows().x[order])
    assert torch.equal(data.targets, torch.tensor(order))
    data = read_data(DataLoader(Subset(Rows(), order), sampler=SequentialSampler(order)), BUDGET)
    assert torch.equal(data.targets, torch.tensor(order))


LOADERS = {
    "batch sampler": lambda: {"batch_sampler": BatchSampler([22, 3, 0, 3], 3, drop_last=False)},
    "incomplete batch dropped": lambda: {"batch_sampler": BatchSampler(SequentialSampler(Rows()), 7, drop_last=True)},
    "lists": lambda: {"batch_sampler": [[3, 4], [-1]]},
    "numbers of NumPy": lambda: {"sampler": list(np.array([22, 3, 3])), "batch_size": 2},
    "numbers of torch": lambda: {"sampler": torch.tensor([22, 3, 3]), "batch_size": 2},
    "sampler of fewer examples": lambda: {"sampler": SequentialSampler(range(11)), "batch_size": 4},
    "all": lambda: {"batch_sampler": BatchSampler(SequentialSampler(Rows()), 7, drop_last=False)},
}


@pytest.mark.parametrize("case", LOADERS)
def test_the_examples_of_a_loader_are_those_that_it_yields(case):
    loader = DataLoader(Rows(), **LOADERS[case]())
    data = read_data(loader, BUDGET)
    assert isinstance(data.inputs, Streamed)
    assert torch.equal(all_of(data.inputs)[0], torch.cat([x for x, _ in loader]))
    assert torch.equal(data.targets, torch.cat([y for _, y in loader]))


def test_small_data_are_read_into_memory(monkeypatch):
    monkeypatch.setattr(streamed_data, "_SMALL", 1 / 8)
    size = N * (3 * 8 + 8)
    assert isinstance(read_data(Rows(), 8 * size).inputs, Tensor)
    assert isinstance(read_data(Rows(), 7 * size).inputs, Streamed)


def test_batches_without_an_index_are_read_into_memory():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(Rows())

    batches = list(DataLoader(Rows(), batch_size=4))
    for data in (DataLoader(Stream(), batch_size=4), DataLoader(batches, batch_size=None), batches):
        assert isinstance(read_data(data, BUDGET).inputs, Tensor)
        with pytest.raises(MemoryBudgetError, match="__getitem__"):
            read_data(data, 500)


class BrokenError(Exception):
    pass


def broken(index, x):
    if index == 13:
        raise BrokenError("the disk is gone")
    return x


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_the_dataset_stay_visible(workers, others):
    with pytest.raises(InputError, match=r"(?s)examples? .*1[0-9].*Broken.*the disk is gone") as caught:
        read_data(DataLoader(Rows(broken), num_workers=workers), BUDGET)
    assert isinstance(caught.value.__cause__, BrokenError)
    assert children() <= others  # although the traceback is alive


def test_examples_and_batches_that_cannot_be_used():
    with pytest.raises(InputError, match="NaN or infinity in example 17"):
        read_data(Rows(lambda index, x: x * (torch.nan if index == 17 else 1)), BUDGET)
    with pytest.raises(InputError, match="same container, dtype and example shape"):
        read_data(DataLoader(Rows(lambda index, x: x[: 3 - index // 20])), BUDGET)
    with pytest.raises(InputError, match="collate_fn must return every example"):
        read_data(DataLoader(Rows(), collate_fn=lambda rows: torch.utils.data.default_collate(rows[:4])), BUDGET)


@pytest.mark.parametrize("workers", [0, 2])
def test_random_augmentation_is_refused(workers):
    loader = DataLoader(Rows(lambda index, x: x + torch.rand(3)), num_workers=workers)
    with pytest.raises(ChangedDataError, match="augment"):
        read_data(loader, BUDGET)


def test_random_targets_are_refused():
    class Noisy(Rows):
        def __getitem__(self, index: int):
            return self.x[index], torch.rand(())

    with pytest.raises(ChangedDataError, match="augment"):
        read_data(Noisy(), BUDGET)


def test_targets_that_change_within_the_first_pass():
    class Counting(Rows):
        reads = 0

        def __getitem__(self, index: int):
            self.reads += index == 1
            return self.x[index], torch.tensor(float(self.reads > 3))

    with pytest.raises(ChangedDataError, match="example 1"):
        read_data(Counting(), BUDGET)


def test_examples_that_change_between_passes():
    dataset = Rows()
    data = read_data(dataset, BUDGET)
    dataset.x[14, 2] += 1e-13
    assert num_examples(take(data.inputs, slice(0, 14))) == 14
    for read in (lambda: take(data.inputs, slice(12, 16)), lambda: all_of(data.inputs)):
        with pytest.raises(ChangedDataError, match="example 14"):
            read()


def test_collation_that_depends_on_the_batch():
    def centred(rows):
        x, y = torch.utils.data.default_collate(rows)
        return x - x.mean(0), y

    with pytest.raises(ChangedDataError, match="collate_fn"):
        read_data(DataLoader(Rows(), collate_fn=centred), BUDGET)


def test_random_states_stay_as_they_are():
    data = read_data(Rows(lambda index, x: x + 0 * torch.rand(3)), BUDGET)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    all_of(data.inputs)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, GeneratorExit])
def test_workers_end_with_an_abandoned_pass(error, others):
    data = read_data(DataLoader(Rows(), num_workers=2), BUDGET)

    def interrupted() -> None:
        for part, _ in in_parts(data.inputs, list(chunks(N, 4))):
            assert len(children() - others) == 2
            if part.start:
                raise error

    with pytest.raises(error) as caught:
        interrupted()
    assert children() <= others
    assert caught.value is not None  # its traceback is alive, with all frames


def test_views():
    data, x = read_data(Rows(), BUDGET), Rows().x
    assert isinstance(data.inputs, OnDemand)
    column = torch.arange(N)[:, None]
    for index in (slice(3, 9), torch.tensor([20, 1])):
        own, beside = leaves(take(Beside(data.inputs, column), index))
        assert torch.equal(own, x[index])
        assert torch.equal(beside, column[index])
    both = joined([data.inputs, x[:6], data.inputs])
    expected = torch.cat([x, x[:6], x])
    assert isinstance(both, OnDemand)
    assert torch.equal(all_of(both, 9)[0], expected)
    assert leaves(take(both, slice(5, 5)))[0].shape == (0, 3)
    assert torch.equal(leaves(take(both, torch.tensor([51, 0, 25, 22, 23])))[0], expected[[51, 0, 25, 22, 23]])
    assert torch.equal(both.checksums, checksums(expected))
    as_list = Converted(read_data(Rows(PACKED["tuples"]), BUDGET).inputs, [x[:1], x[:1, :1]])
    assert isinstance(take(as_list, slice(3, 5)), list)
    assert torch.equal(all_of(as_list)[1], x[:, :1])


def test_copies_share_the_dataset_and_pickles_contain_it():
    data = read_data(Rows(), BUDGET)  # it holds a lambda
    assert deepcopy(data.inputs) is data.inputs
    with pytest.raises(InputError, match=r"cannot be pickled.*save"):
        pickle.dumps(data.inputs)
    data = read_data(Plain(), BUDGET)
    again = pickle.loads(pickle.dumps(data.inputs))
    assert torch.equal(all_of(again)[0], all_of(data.inputs)[0])


class Plain(Dataset):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((2,), float(index)), index


def test_checksums_see_every_change():
    for dtype in (torch.float64, torch.float32, torch.float16, torch.uint8, torch.bool):
        x = torch.randint(2, (5, 3, 7)).to(dtype)
        sums = checksums(x)
        assert torch.equal(checksums((x,)), sums)
        assert torch.equal(checksums(x.flip(0)), sums.flip(0))
        assert torch.equal(checksums(torch.cat([x[:, :, :1], x], 2)[:, :, 1:]), sums)
        assert bool((checksums(x.flip(2)) != sums)[(x != x.flip(2)).flatten(1).any(1)].all())
        changed = x.clone()
        changed[3, 1, 4] = 1 - changed[3, 1, 4].to(torch.uint8)
        assert (checksums(changed) != sums).tolist() == [False, False, False, True, False]
    assert torch.equal(checksums(torch.zeros(2, 0)), torch.zeros(2, dtype=torch.int64))
