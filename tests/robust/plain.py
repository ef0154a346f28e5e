"""Wrong Python types, tried in an interpreter without the type checks of the test run: what a user sees.

Run as a program, it prints for each case the name of the error and its message, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dnn2gp import VOGN, Diagonal, FunctionSpace, GaussianLikelihood, Kronecker, convert, load, tune
from dnn2gp.features import NetworkFeatures
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
    "prior: none": lambda: attempt(prior_precision=None),
    "prior: list": lambda: attempt(prior_precision=[1.0, 2.0]),
    "prior: array": lambda: attempt(prior_precision=np.ones(2)),
    "prior: string in a mapping": lambda: attempt(prior_precision={"0": 1.0, "2": "x"}),
    "prior: none in a mapping": lambda: attempt(prior_precision={"0": 1.0, "2": None}),
    "structure: string": lambda: attempt(structure="diagonal"),
    "structure: matrix": lambda: attempt(structure=DiagonalPrecision(torch.ones(3))),
    "structure: class": lambda: attempt(structure=Kronecker),
    "structure: inference": lambda: attempt(structure=FunctionSpace),
    "inference: string": lambda: attempt(inference="function space"),
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
    "tune: settings": lambda: tune.grid(lambda **_: 0.0, {"width": [object()]}),
    "tune: fit": lambda: tune.grid(3, {"width": [1]}),
    "tune: objective": lambda: tune.study(3, num_trials=1),
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
