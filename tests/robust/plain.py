"""Wrong Python types, tried in an interpreter without the type checks of the test run: what a user sees.

Run as a program, it prints for each case the name of the error and its message, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dnn2gp import (
    VOGN,
    Diagonal,
    FunctionSpace,
    GaussianLikelihood,
    GaussianProcess,
    Kronecker,
    WeightSpace,
    convert,
    diagnose,
    load,
    precision_from_weight_decay,
    tune,
)
from dnn2gp.apps.demo import DemoConfig
from dnn2gp.apps.table_tuning import TableTuningConfig
from dnn2gp.features import NetworkFeatures
from dnn2gp.gp import sample_network
from dnn2gp.gp.by_evidence import ByEvidence
from dnn2gp.inference import NetworkOutput
from dnn2gp.network.mlp import mlp as perceptron
from dnn2gp.paper.training import TrainConfig
from dnn2gp.weights import DiagonalPrecision

from robust.support import CHECKED, DELTA, NOISE, mlp, regression, untouched

X, Y = regression()


def attempt(**settings: object) -> None:
    arguments = {"network": mlp(), "data": (X, Y), "likelihood": NOISE, "prior_precision": DELTA, **settings}
    module = arguments["network"] if isinstance(arguments["network"], nn.Module) else mlp()
    with untouched(module):
        convert(**arguments)


def predict(inputs: object) -> None:
    module = mlp()
    gp = convert(module, (X, Y), NOISE, DELTA)
    with untouched(module):
        gp.predict(inputs)


def engine() -> NetworkFeatures:
    return convert(mlp(), (X, Y), NOISE, DELTA).features


def engine_gp() -> GaussianProcess:
    return convert(mlp(), (X, Y), NOISE, DELTA)


def on_meta() -> None:
    module = mlp()
    with torch.device("meta"):
        convert(module, (X, Y), NOISE, DELTA)


class Layerdrop(nn.Module):
    """Draws from every global generator, in forward, to no effect."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + 0 * (random.random() + np.random.rand() + float(torch.rand(())))


class Dropped(Layerdrop):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + random.random() + F.dropout(x, 0.5, training=True).sum()


CASES = {
    "good": lambda: attempt(),
    "good: integer prior": lambda: attempt(prior_precision=2),
    "good: prior by the evidence": lambda: attempt(prior_precision=None),
    "good: NumPy prior": lambda: attempt(prior_precision=np.float32(2)),
    "good: budget as a float": lambda: attempt(memory_budget=4e9),
    "good: random numbers in vain": lambda: attempt(network=Layerdrop()),
    "good: loader": lambda: attempt(data=DataLoader(TensorDataset(X, Y), batch_size=3)),
    "random network": lambda: attempt(network=Dropped()),
    "network: class": lambda: attempt(network=nn.Linear),
    "network: none": lambda: attempt(network=None),
    "network: function": lambda: attempt(network=lambda x: x),
    "likelihood: string": lambda: attempt(likelihood="gaussian"),
    "likelihood: class": lambda: attempt(likelihood=GaussianLikelihood),
    "likelihood: loss": lambda: attempt(likelihood=nn.MSELoss()),
    "prior: string": lambda: attempt(prior_precision="1"),
    "prior: true": lambda: attempt(prior_precision=True),
    "mean: class": lambda: attempt(mean=NetworkOutput),
    "mean: inference": lambda: attempt(mean=WeightSpace()),
    "prior: evidence at a string": lambda: attempt(prior_precision=ByEvidence("mode")),
    "prior: list": lambda: attempt(prior_precision=[1.0, 2.0]),
    "prior: array": lambda: attempt(prior_precision=np.ones(2)),
    "prior: string in a mapping": lambda: attempt(prior_precision={"0": 1.0, "2": "x"}),
    "prior: none in a mapping": lambda: attempt(prior_precision={"0": 1.0, "2": None}),
    "structure: string": lambda: attempt(structure="diagonal"),
    "structure: matrix": lambda: attempt(structure=DiagonalPrecision(torch.ones(3))),
    "structure: class": lambda: attempt(structure=Kronecker),
    "structure: inference": lambda: attempt(structure=FunctionSpace),
    "inference: string": lambda: attempt(inference="function space"),
    "mean: string": lambda: attempt(mean="mode"),
    "inference: class": lambda: attempt(inference=FunctionSpace),
    "inference: structure": lambda: attempt(inference=Diagonal()),
    "budget: string": lambda: attempt(memory_budget="4GB"),
    "budget: nan": lambda: attempt(memory_budget=float("nan")),
    "budget: true": lambda: attempt(memory_budget=True),
    "predict: array": lambda: predict(X.numpy()),
    "predict: none": lambda: predict(None),
    "predict: list of numbers": lambda: predict([[1.0, 2.0, 3.0]]),
    "engine: vector": lambda: engine().jvp(X, torch.ones(26).double()),
    "engine: short vector": lambda: engine().jvp(X, torch.ones(7, 1).double()),
    "engine: cotangents": lambda: engine().vjp(X, torch.ones(10, 2).double()),
    "engine: root": lambda: engine().ggn_diagonal(X, torch.ones(10, 3, 1).double()),
    "engine: number": lambda: engine().kernel_full(X, 1.0),
    "engine: array": lambda: engine().plan("kernel_full", X.numpy()),
    "engine: width": lambda: engine().plan("kernel_full", X[:, :2]),
    "optimizer: weights": lambda: VOGN(list(mlp().parameters()), NOISE, 10),
    "optimizer: likelihood": lambda: VOGN(mlp(), nn.MSELoss(), 10),
    "optimizer: samples": lambda: VOGN(mlp(), NOISE, 10, num_samples=1.5),
    "optimizer: rate": lambda: VOGN(mlp(), NOISE, 10, lr="0.1"),
    "optimizer: targets": lambda: VOGN(mlp(), NOISE, 10).step(X, Y.numpy()),
    "tune: network": lambda: tune.gradient(3, (X, Y), NOISE),
    "tune: likelihood": lambda: tune.gradient(mlp(), (X, Y), "gaussian"),
    "tune: rank": lambda: tune.gradient(mlp(), (X, Y), NOISE, rank="evidence"),
    "tune: settings": lambda: tune.grid(lambda **_: 0.0, {"width": [object()]}),
    "tune: fit": lambda: tune.grid(3, {"width": [1]}),
    "tune: objective": lambda: tune.study(3, num_trials=1),
    "prior: 10**400": lambda: attempt(prior_precision=10**400),
    "prior: fraction": lambda: attempt(prior_precision=Fraction(10**400, 3)),
    "prior: 10**400 in a mapping": lambda: attempt(prior_precision={"0": 1.0, "2": 10**400}),
    "budget: 10**400": lambda: attempt(memory_budget=10**400),
    "data: sparse": lambda: attempt(data=(X.to_sparse(), Y)),
    "data: rows": lambda: attempt(data=(X.to_sparse_csr(), Y)),
    "data: sparse targets": lambda: attempt(data=(X, Y.to_sparse())),
    "data: meta": lambda: attempt(data=(X.to("meta"), Y)),
    "data: meta targets": lambda: attempt(data=(X, Y.to("meta"))),
    "predict: sparse": lambda: predict(X.to_sparse()),
    "predict: meta": lambda: predict(X.to("meta")),
    "predict: nested": lambda: predict(torch.nested.nested_tensor([X[0], X[1]])),
    "device: meta": lambda: on_meta(),
    "diagnose: number": lambda: diagnose(3),
    "diagnose: probes": lambda: diagnose(engine_gp(), num_probes=2.5),
    "diagnose: subset": lambda: diagnose(engine_gp(), subset=0),
    "diagnose: generator": lambda: diagnose(engine_gp(), generator=3),
    "count: functions": lambda: engine_gp().sample_functions(2.5),
    "count: networks": lambda: sample_network(engine_gp(), X, 2.5),
    "count: weights": lambda: engine_gp().prior.sample(2.5),
    "count: width": lambda: perceptron(3, 1, width=3.7),
    "count: depth": lambda: perceptron(3, 1, depth=1.5),
    "count: true": lambda: perceptron(3, 1, width=True),
    "count: repeats": lambda: tune.grid(lambda **_: 0.0, {"width": [1]}, repeats=1.5),
    "count: jobs": lambda: tune.grid(lambda **_: 0.0, {"width": [1]}, num_jobs=1.5),
    "count: trials": lambda: tune.study(lambda trial: 0.0, num_trials=1.5),
    "count: rounds": lambda: tune.gradient(mlp(), (X, Y), NOISE, max_rounds=2.5),
    "count: every": lambda: tune.WhileTraining(mlp(), (X, Y), NOISE, every=1.5),
    "count: examples": lambda: precision_from_weight_decay(0.1, 2.5),
    "count: restarts": lambda: TableTuningConfig(restarts=1.5).check(),
    "count: widths": lambda: TableTuningConfig(widths=(3.7,)).check(),
    "count: epochs": lambda: TrainConfig(epochs=2.5).check(),
    "count: digits": lambda: DemoConfig(num_train=20.5).check(),
    "seed: train": lambda: TrainConfig(seed=2**63).check(),
    "seed: demo": lambda: DemoConfig(seed=-1).check(),
    "seed: study": lambda: tune.study(lambda trial: 0.0, num_trials=1, seed=2**63),
    "seed: negative": lambda: tune.study(lambda trial: 0.0, num_trials=1, seed=-1),
    "seed: optimizer": lambda: VOGN(mlp(), NOISE, 10, seed=2**70),
    "load: network": lambda: load(sys.argv[1], "network"),
    "load: function": lambda: load(sys.argv[1], lambda: None),
    "load: likelihood": lambda: load(sys.argv[1], mlp(), likelihood="gaussian"),
}


def outcome(case) -> tuple[str, str]:
    try:
        case()
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


if __name__ == "__main__":
    assert not CHECKED
    warnings.simplefilter("ignore")
    print(json.dumps({name: outcome(case) for name, case in CASES.items()}))
