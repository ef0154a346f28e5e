"""Data of every form: read as it is, or refused with what to do; the generators of the user's stay where they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
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

from dnn2gp import convert
from dnn2gp.network.data import read_data
from dnn2gp.support.errors import InputError

from robust.support import DELTA, NOISE, mlp, regression, untouched

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


def refused(data: object, match: str) -> None:
    module = mlp()
    with untouched(module), pytest.raises(InputError, match=match):
        convert(module, data, NOISE, DELTA)


class Rows(Dataset):
    """The examples of a regression, each changed by `change`."""

    def __init__(self, change=lambda index, x, y: (x, y), num: int = 10) -> None:
        self.x, self.y = regression(max(num, 1))
        self.change, self.num = change, num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int):
        if index >= self.num:
            raise IndexError(index)
        return self.change(index, self.x[index], self.y[index])


class Stream(IterableDataset):
    def __init__(self, once: bool = False) -> None:
        self.rows = list(zip(*regression(), strict=True))
        self.source = iter(self.rows) if once else None

    def __iter__(self):
        return iter(self.rows) if self.source is None else self.source


class Reiterable:
    def __iter__(self):
        x, y = regression()
        yield x[:6], y[:6]
        yield x[6:], y[6:]


GOOD = {
    "pair": lambda: regression(),
    "list of two": lambda: list(regression()),
    "TensorDataset": lambda: TensorDataset(*regression()),
    "Dataset": Rows,
    "Subset": lambda: torch.utils.data.Subset(Rows(), range(10)),
    "IterableDataset": Stream,
    "loader": lambda: DataLoader(Rows(), batch_size=3),
    "loader of a stream": lambda: DataLoader(Stream(), batch_size=3),
    "batches": lambda: list(DataLoader(Rows(), batch_size=3)),
    "two batches": lambda: list(DataLoader(Rows(), batch_size=5)),
    "re-iterable": Reiterable,
    "with workers": lambda: DataLoader(Rows(), batch_size=5, num_workers=1),
    "with a gradient": lambda: tuple(t.requires_grad_(True) for t in regression()),
}


@pytest.mark.parametrize("form", GOOD)
def test_good_data(form: str) -> None:
    x, y = regression()
    given = GOOD[form]()
    with untouched(mlp()):
        data = read_data(given)
    assert torch.equal(data.inputs, x)
    assert torch.equal(data.targets, y)
    assert not data.inputs.requires_grad
    assert not data.targets.requires_grad


def test_several_inputs_in_a_tensor_dataset() -> None:
    x, y = regression()
    data = read_data(TensorDataset(x, y, y))
    assert isinstance(data.inputs, tuple)
    assert len(data.inputs) == 2


def test_empty() -> None:
    refused((torch.zeros(0, 3).double(), torch.zeros(0, 2).double()), "inputs: expected at least one example; got none")
    refused([], "expected at least one batch; got an empty loader.*drop_last")
    refused(Rows(num=0), "expected at least one batch; got an empty loader")
    refused(DataLoader(Rows(), batch_size=20, drop_last=True), "got drop_last=True")
    refused(((), regression()[1]), "inputs: expected at least one tensor; got an empty tuple")


@pytest.mark.parametrize(
    "make", [lambda: (b for b in [regression()]), lambda: iter([regression()]), lambda: zip(*regression(), strict=True)]
)
def test_one_shot_iterators(make) -> None:
    refused(make(), r"can be read more than once; got a one-shot iterator \(.*Pass a DataLoader, a Dataset")


def test_one_shot_streams() -> None:
    refused(Stream(once=True), r"two passes that differ.*\(c\) read a one-shot stream")
    refused(DataLoader(Stream(once=True), batch_size=3), "two passes that differ")


SHUFFLED = {
    "shuffle": lambda g: DataLoader(Rows(), batch_size=3, shuffle=True, generator=g),
    "batch of all": lambda g: DataLoader(Rows(), batch_size=10, shuffle=True, generator=g),
    "one example": lambda g: DataLoader(Rows(num=1), shuffle=True, generator=g),
    "subset": lambda g: DataLoader(Rows(), sampler=SubsetRandomSampler(range(5), g)),
    "weighted": lambda g: DataLoader(Rows(), sampler=WeightedRandomSampler([1.0] * 10, 10, generator=g)),
    "batch sampler": lambda g: DataLoader(
        Rows(), batch_sampler=BatchSampler(RandomSampler(Rows(), generator=g), 3, False)
    ),
}


@pytest.mark.parametrize("kind", SHUFFLED)
@pytest.mark.parametrize("own", [False, True])
def test_shuffled_loaders(kind: str, own: bool) -> None:
    generator = torch.Generator().manual_seed(3) if own else None
    before = None if generator is None else generator.get_state()
    refused(SHUFFLED[kind](generator), r"two passes that differ.*\(a\) shuffle: pass DataLoader\(..., shuffle=False\)")
    assert before is None or torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("draw", [lambda: torch.rand(1).double(), np.random.rand, random.random])
def test_random_augmentation(draw) -> None:
    refused(Rows(lambda _, x, y: (x + draw(), y)), r"two passes that differ.*\(b\) augment at random: switch that off")


def test_random_numbers_that_change_nothing() -> None:
    def wasteful(_: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + 0 * (np.random.rand() + float(torch.rand(()))), y

    module = mlp()
    with untouched(module):
        convert(module, Rows(wasteful), NOISE, DELTA)


def test_the_loaders_own_generator() -> None:
    module, generator = mlp(), torch.Generator().manual_seed(3)
    before = generator.get_state()
    with untouched(module):
        convert(module, DataLoader(Rows(), batch_size=3, generator=generator), NOISE, DELTA)
    assert torch.equal(generator.get_state(), before)


X, Y = regression()
BATCHES = {
    "dict": ([{"x": X}], "expected each batch to be a pair.*got dict in batch 0.*collate_fn"),
    "three": ([(X, Y, Y)], r"got tuple of 3 in batch 0"),
    "one": ([(X,)], r"got tuple of 1 in batch 0"),
    "tensor": ([X], "got Tensor in batch 0"),
    "later": ([(X, Y), (X, Y), X], "got Tensor in batch 2"),
    "no targets": ([({"x": X}, None)], "batch 0: expected targets as a torch.Tensor; got NoneType"),
    "ragged": (
        [(X, Y), (X, Y[:4])],
        r"batch 1: expected one target for each of the 10 inputs; got targets of shape \(4, 2\)",
    ),
    "ragged that add up": ([(X, Y[:4]), (X[:4], Y)], "batch 0: expected one target for each of the 10 inputs"),
    "shape": (
        [(X, Y), (X[:, :2], Y)],
        r"the inputs of batch 0 are float64 of shape \(10, 3\), .*of batch 1 are float64 of shape \(10, 2\)",
    ),
    "dtype": ([(X, Y), (X.float(), Y)], "same container, dtype.*inputs of batch 0 are float64.*of batch 1 are float32"),
    "container": ([(X, Y), ((X,), Y)], r"of batch 1 are a tuple of \[float64"),
    "targets": (
        [(X, Y), (X, Y[:, :1])],
        r"the targets of batch 0 are float64 of shape \(10, 2\), .*of batch 1 are float64 of shape \(10, 1\)",
    ),
    "targets' dtype": ([(X, Y), (X, Y.float())], "the targets of batch 0 are float64.*of batch 1 are float32"),
    "no examples": ([(X, Y), (X[:0], Y[:0])], "batch 1, inputs: expected at least one example"),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_bad_batches(kind: str) -> None:
    refused(*BATCHES[kind])


def test_examples_that_do_not_stack() -> None:
    refused(Rows(lambda i, x, y: (x[: 1 + i % 3], y)), "Dataset could not be put into batches.*collate_fn")
    refused(Rows(lambda i, x, y: (object(), y)), "Dataset could not be put into batches.*tensors")


PAIRS = {
    "numpy": (
        (X.numpy(), Y.numpy()),
        r"inputs: expected a torch.Tensor.*got ndarray. Convert arrays with torch.as_tensor",
    ),
    "numpy inputs": ((X.numpy(), Y), "inputs: expected a torch.Tensor.*got ndarray"),
    "numpy targets": (
        (X, Y.numpy()),
        "expected targets as a torch.Tensor; got ndarray. Convert arrays with torch.as_tensor",
    ),
    "list targets": ((X, [0.0] * 10), "expected targets as a torch.Tensor; got list"),
    "numpy in a dict": (({"x": X, "m": X.numpy()}, Y), "got ndarray"),
    "mismatch": ((X, Y[:7]), r"expected one target for each of the 10 inputs; got targets of shape \(7, 2\)"),
    "0-d targets": ((X, Y[0, 0]), r"got targets of shape \(\)"),
    "0-d inputs": ((X[0, 0], Y), "got a 0-d tensor"),
    "inputs mismatch": (((X, X[:4]), Y), r"expected tensors with the same number of examples.*got \[4, 10\]"),
    "three": ((X, Y, Y), r"expected a pair.*got a tuple of 3.*\(\(first, second\), targets\)"),
    "tensor": (X, "expected a pair.*got Tensor"),
    "array": (X.numpy(), "expected a pair.*got ndarray"),
    "dict": ({"x": X, "y": Y}, "expected a pair.*got dict"),
    "string": ("train", "expected a pair.*got str"),
    "none": (None, "expected a pair.*got NoneType"),
    "one tensor": (TensorDataset(X), "got one with a single tensor. Add the targets"),
    "float32": (
        (X, Y.float()),
        r"targets: expected the network's dtype torch.float64; got .*float32. Use targets.to\(torch.float64\)",
    ),
    "columns": ((X, Y[:, :1]), r"expected 2 target value\(s\) per example"),
    "integers": ((X, Y.long()), "targets: expected the network's dtype torch.float64; got .*int64"),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_bad_pairs(kind: str) -> None:
    refused(*PAIRS[kind])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite(value: float) -> None:
    for row in (2, 8):
        x, y = regression()
        x[row, 1] = value
        refused((x, y), f"inputs: .*NaN or infinity in example {row}. Remove or impute")
        refused(DataLoader(TensorDataset(x, y), batch_size=3), f"inputs: .*NaN or infinity in example {row}")
        x, y = regression()
        y[row, 1] = value
        refused((x, y), f"expected finite targets; got -?(nan|inf) in row {row}")


def test_bad_data_for_condition() -> None:
    module, (x, y) = mlp(), regression()
    gp = convert(module, (x, y), NOISE, DELTA)
    for data, match in [
        ((x[:, :2], y), "forward fails"),
        ((x, y[:3]), "expected one target"),
        ((x.float(), y), "float32"),
    ]:
        with untouched(module), pytest.raises(InputError, match=match):
            gp.condition(data)
    assert torch.equal(gp.predict(x).mean, convert(module, (x, y), NOISE, DELTA).predict(x).mean)


def test_a_loader_that_drops_the_last_batch_is_refused() -> None:
    x, y = regression()
    module = mlp()
    with untouched(module), pytest.raises(InputError, match=r"drop_last=True.*loader\.dataset"):
        convert(module, DataLoader(TensorDataset(x, y), batch_size=4, drop_last=True), NOISE, DELTA)
