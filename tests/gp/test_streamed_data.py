"""A GP whose training data are read on demand gives the same answers as one with the data in memory."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import dnn2gp.network.streamed as streamed_data
from dnn2gp import (
    CategoricalLikelihood,
    Diagonal,
    FunctionSpace,
    GaussianLikelihood,
    GaussianProcess,
    Iterative,
    Kronecker,
    NetworkOutput,
    WeightSpace,
    convert,
    diagnose,
    load,
    save,
)
from dnn2gp.network.inputs import OnDemand
from dnn2gp.support.errors import ChangedDataError, InputError
from dnn2gp.weights import Expansion

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
N = 37
CLASSES, NOISE = CategoricalLikelihood(), GaussianLikelihood(0.3)


class Made(Dataset):
    """Points of the plane in three classes, or with one output."""

    def __init__(self, count: int = N, *, regression: bool = False, packed: bool = False) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 2, generator=generator, dtype=torch.float64)
        classes = (self.x[:, 0] > 0).long() + (self.x[:, 1] > 0).long()
        self.y = self.x[:, :1].sin() if regression else classes
        self.packed = packed

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int):
        x = self.x[index]
        return {"first": x[:1], "second": x[1:]} if self.packed else x, self.y[index]

    def tensors(self):
        inputs = {"first": self.x[:, :1], "second": self.x[:, 1:]} if self.packed else self.x
        return inputs, self.y


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rest = network()

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.rest(torch.cat([first, second], 1))


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(streamed_data, "_SMALL", 0.0)
    monkeypatch.setattr(streamed_data, "_MOST", 6)
    monkeypatch.setattr(streamed_data, "_KEPT", 3)


def both(dataset: Made, module: nn.Module, likelihood, workers: int = 0, **settings):
    """The GP with the data in memory, and the one with the dataset."""
    expected = convert(module, dataset.tensors(), likelihood, 0.7, **settings)
    data = DataLoader(dataset, batch_size=4, num_workers=workers) if workers else dataset
    found = convert(module, data, likelihood, 0.7, **settings)
    inputs = found.model.expansion.inputs
    assert isinstance(inputs, OnDemand)
    assert not isinstance(expected.model.expansion.inputs, OnDemand)
    return expected, found


def children() -> set[int]:
    """The processes that this one has started: other tests in it may have left some, such as a fork server."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def same(left: Tensor | float, right: Tensor | float, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(torch.as_tensor(left), torch.as_tensor(right), rtol=tolerance, atol=tolerance)


def same_predictions(left: GaussianProcess, right: GaussianProcess, packed: bool = False) -> None:
    x = torch.linspace(-2, 2, 10, dtype=torch.float64).reshape(5, 2)
    inputs = {"first": x[:, :1], "second": x[:, 1:]} if packed else x
    one, other = left.predict(inputs), right.predict(inputs)
    same(one.latent_mean, other.latent_mean)
    same(one.latent_covariance, other.latent_covariance)
    same(one.mean, other.mean)
    same(left.covariance(inputs), right.covariance(inputs))


INFERENCES = [
    WeightSpace(),
    FunctionSpace(),
    WeightSpace(Diagonal()),
    WeightSpace(Kronecker()),
    Iterative(rank=8, samples=4),
]


@pytest.mark.parametrize("inference", INFERENCES, ids=repr)
def test_classification(inference):
    """The first inference has the default mean and calibration."""
    mean = None if inference == WeightSpace() else NetworkOutput()
    expected, found = both(Made(), network(), CLASSES, inference=inference, mean=mean)
    same_predictions(expected, found)
    same(expected.evidence().value, found.evidence().value)
    if inference.solves:  # leave-one-out is not defined for the others
        same(expected.leave_one_out().log_prob, found.leave_one_out().log_prob)


@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace(), Iterative(rank=8, samples=4)], ids=repr)
def test_conditioning_regressions(inference):
    expected, found = both(Made(regression=True), network(1), NOISE, inference=inference)
    same(expected.evidence().value, found.evidence().value)
    extra = Made(8, regression=True)
    expected, found = expected.condition(extra.tensors()), found.condition(extra)
    assert found.model.expansion.num_examples == N + 8
    same_predictions(expected, found)
    same(expected.evidence().value, found.evidence().value)


def test_workers_and_inputs_in_a_dict():
    settings, before = {"inference": WeightSpace(), "mean": NetworkOutput()}, children()
    same_predictions(*both(Made(packed=True), TwoInputs(), CLASSES, 2, **settings), packed=True)
    assert children() <= before


def test_prior_precision_by_evidence_and_a_validation_set():
    module, dataset = network(), Made()
    expected, found = (
        convert(module, data, CLASSES, validation=other, inference=WeightSpace())
        for data, other in ((dataset.tensors(), Made(9).tensors()), (dataset, Made(9)))
    )
    same(expected.prior.precision.diagonal(), found.prior.precision.diagonal(), 1e-6)
    same(expected.calibration.scale, found.calibration.scale, 1e-5)


def test_gradient_features_diagnosis_and_one_example():
    settings = {"inference": WeightSpace(), "expansion": Expansion.empirical_fisher}
    expected, found = both(Made(), network(), CLASSES, **settings)
    same_predictions(expected, found)
    expected, found = both(Made(1), network(), CLASSES, mean=NetworkOutput())
    same_predictions(expected, found)
    assert str(diagnose(found)).splitlines()[0] == str(diagnose(expected)).splitlines()[0]


def test_copies_and_pickles():
    expected, found = both(Made(), network(), CLASSES, inference=FunctionSpace())
    same_predictions(expected, deepcopy(found))
    same_predictions(expected, pickle.loads(pickle.dumps(found)))


@pytest.mark.parametrize("inference", [*INFERENCES[:2], INFERENCES[-1]], ids=repr)
def test_files_leave_the_data_out(inference, tmp_path):
    gp = convert(network(), Made(), CLASSES, 0.7, inference=inference, mean=NetworkOutput())
    save(gp, tmp_path / "gp")
    alone, whole = load(tmp_path / "gp", network()), load(tmp_path / "gp", network(), data=Made())
    same_predictions(gp, whole)
    same_predictions(gp, load(tmp_path / "gp", network(), data=Made().tensors()))
    with pytest.raises(InputError, match=r"load\(path, network, data=...\)"):
        alone.leave_one_out()
    if inference != FunctionSpace():
        same_predictions(gp, alone)
        save(alone, tmp_path / "again")
        same_predictions(gp, load(tmp_path / "again", network()))
    other = Made()
    other.x[35] += 1
    with pytest.raises(InputError, match="data: expected the 37 training examples"):
        load(tmp_path / "gp", network(), data=other)


def test_data_that_change_after_the_conversion():
    dataset = Made()
    gp = convert(network(), dataset, CLASSES, 1.0, inference=WeightSpace())
    dataset.x[11] += 1e-9
    with pytest.raises(ChangedDataError, match="example 11"):
        gp.leave_one_out()


class Interrupted(nn.Module):
    """A network whose 40th call raises KeyboardInterrupt, like Ctrl-C."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.rest = network()

    def forward(self, x: Tensor) -> Tensor:
        Interrupted.calls += 1
        if Interrupted.calls == 40:
            assert psutil.Process().children()
            raise KeyboardInterrupt
        return self.rest(x)


def test_an_interrupted_conversion_leaves_no_worker():
    before = children()
    with pytest.raises(KeyboardInterrupt) as caught:
        convert(Interrupted(), DataLoader(Made(), num_workers=2), CLASSES, 1.0, inference=WeightSpace())
    assert children() <= before
    assert caught.value is not None  # its traceback is alive, with all frames


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_data_are_never_in_memory():
    """1,500 images take 18 MB, and the conversion about 10 MB."""
    root = Path(__file__).parents[2]
    code = (
        "import json\n"
        "from benchmarks.streaming import measured\n"
        "print(json.dumps(measured('diagonal', 1500, 24e6, 0)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peak growth MB"] <= 16
