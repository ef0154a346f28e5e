"""What is measured of one network: its own predictions, those of its GP, and those after temperature scaling."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from math import exp
from time import perf_counter

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from benchmarks.calibration.networks import MINIMA, Case, Pair, Split, build, split, train
from benchmarks.calibration.regression import RegressionCase, regression_row
from dnn2gp import CategoricalLikelihood, GaussianProcess, convert
from dnn2gp.estimators import GPNetClassifier
from dnn2gp.inference.calibration import Calibration
from dnn2gp.inference.metrics import accuracy, ece, nll

MINIMUM = "minimum"
"""The regime of networks that an estimator trained and tuned."""


def measured(case: Case | RegressionCase) -> dict:
    """One row of the results."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(case, RegressionCase):
            return regression_row(case)
        return _of_estimator(case) if case.regime == MINIMUM else _of_network(case)


def _of_network(case: Case) -> dict:
    data = split(case.data, case.seed)
    with torch.random.fork_rng():
        torch.manual_seed(case.seed)
        network = train(build(case, data), case, data)
    begin = perf_counter()
    gp = convert(network, data.train, CategoricalLikelihood())
    seconds = perf_counter() - begin
    held = convert(network, data.train, CategoricalLikelihood(), validation=data.validation)
    ways = {
        "network": _softmax(network, data.test),
        "temperature scaling": temperature_scaled(network, data),
        "temperature scaling, prior": temperature_scaled(network, data, prior=True),
        "GP": gp.predict(data.test[0]).probabilities,
        "GP, validation": held.predict(data.test[0]).probabilities,
    }
    return {
        **asdict(case),
        "num_weights": gp.network.num_weights,
        "num_train": len(data.train[1]),
        "seconds": seconds,
        "mean": gp.centre.name,
        "calibration": asdict(gp.calibration),
        "scores": {way: scores(probabilities, data.test[1]) for way, probabilities in ways.items()},
        "train_nll": nll(_softmax(network, data.train), data.train[1]),
    }


def _of_estimator(case: Case) -> dict:
    """A network at a minimum, with δ by the evidence: the exact GP, and the one with a by leave-one-out."""
    data = split(case.data, case.seed, MINIMA)
    # Training and validation data together: nothing is chosen on the latter.
    x, y = (torch.cat(parts) for parts in zip(data.train, data.validation, strict=True))
    found = GPNetClassifier(random_state=case.seed).fit(x.numpy(), y.numpy())
    gp: GaussianProcess = found.gp_
    inputs = torch.from_numpy(found.input_scaler_.transform(data.test[0].numpy()))
    exact = replace(gp, calibration=Calibration())
    ways = {
        "network": torch.softmax(gp.network(gp.network.weights, inputs), 1),
        "GP, a = 1": exact.predict(inputs).probabilities,
        "GP": gp.predict(inputs).probabilities,
    }
    return {
        **asdict(case),
        "num_weights": gp.network.num_weights,
        "num_train": len(y),
        "mean": gp.centre.name,
        "calibration": asdict(gp.calibration),
        "leave_one_out": {"GP, a = 1": exact.leave_one_out().nll, "GP": gp.leave_one_out().nll},
        "scores": {way: scores(probabilities, data.test[1]) for way, probabilities in ways.items()},
    }


def scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, NLL in nats and ECE."""
    return {
        "accuracy": accuracy(probabilities, labels),
        "nll": nll(probabilities, labels),
        "ece": ece(probabilities, labels),
    }


def _softmax(network: nn.Module, data: Pair, temperature: float = 1.0) -> Tensor:
    with torch.no_grad():
        return torch.softmax(network(data[0]).double() / temperature, 1)


def temperature_scaled(network: nn.Module, data: Split, *, prior: bool = False) -> Tensor:
    """With the temperature of the smallest NLL on the validation set; `prior`: log τ ~ N(0, 1), as for the GP."""
    inputs, labels = data.validation

    def value(log_temperature: float) -> float:
        own = nll(_softmax(network, data.validation, exp(log_temperature)), labels)
        return own + 0.5 * log_temperature**2 / len(inputs) if prior else own

    found = minimize_scalar(value, bounds=(-3.0, 3.0), method="bounded")
    return _softmax(network, data.test, exp(found.x))
