"""Regression networks, trained by Adam and stopped early, and the coverage of their GP's 90 % intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import log, pi

import torch
from sklearn import datasets
from torch import Tensor, nn

from benchmarks.tuning_table import Split, wine
from dnn2gp import GaussianLikelihood, convert
from dnn2gp.network.mlp import mlp

LEVEL = 0.9


def friedman2(seed: int) -> Split:
    x, y = datasets.make_friedman2(1200, noise=50.0, random_state=seed)
    return Split.of(x, y, 300, seed)


def friedman1(seed: int) -> Split:
    x, y = datasets.make_friedman1(1200, n_features=10, noise=1.0, random_state=seed)
    return Split.of(x, y, 300, seed)


def friedman3(seed: int) -> Split:
    x, y = datasets.make_friedman3(1200, noise=0.1, random_state=seed)
    return Split.of(x, y, 300, seed)


def diabetes(seed: int) -> Split:
    x, y = datasets.load_diabetes(return_X_y=True)
    return Split.of(x, y, 300, seed)


def linear(seed: int) -> Split:
    x, y = datasets.make_regression(1200, 8, noise=20.0, random_state=seed)
    return Split.of(x, y, 300, seed)


REGRESSIONS: dict[str, Callable[[int], Split]] = {
    "diabetes": diabetes,
    "wine quality": wine,
    "friedman 1": friedman1,
    "friedman 2": friedman2,
    "friedman 3": friedman3,
    "linear": linear,
}


@dataclass(frozen=True)
class RegressionCase:
    """One regression network."""

    data: str
    kind: str
    seed: int

    @property
    def name(self) -> str:
        """A name for files and tables."""
        return f"{self.data}, {self.kind}, regression, split {self.seed}"


def regression_row(case: RegressionCase) -> dict:
    """Coverage and NLL of the GP, and of the network with the noise of its training residuals."""
    data = REGRESSIONS[case.data](case.seed)
    with torch.random.fork_rng():
        torch.manual_seed(case.seed)
        network = _trained(data, case.kind)
    gp = convert(network, (data.x, data.y), GaussianLikelihood())
    prediction = gp.predict(data.x_test)
    lower, upper = prediction.interval(LEVEL)
    inside = (lower <= data.y_test) & (data.y_test <= upper)
    calibrated = gp.calibrated().predict(data.x_test)
    low, high = calibrated.interval(LEVEL)
    with torch.no_grad():
        sigma = (network(data.x) - data.y).square().mean().sqrt()
        plain = _normal_nll(data.y_test, network(data.x_test), sigma)
        rmse = (network(data.x_test) - data.y_test).square().mean().sqrt().item()
    return {
        **asdict(case),
        "regime": "regression",
        "num_train": len(data.y),
        "coverage": inside.double().mean().item(),
        "coverage, calibrated": ((low <= data.y_test) & (data.y_test <= high)).double().mean().item(),
        "nll": {
            "network": plain,
            "GP": -prediction.log_prob(data.y_test).mean().item(),
            "GP, calibrated": -calibrated.log_prob(data.y_test).mean().item(),
        },
        "rmse": {"network": rmse, "GP": (prediction.mean - data.y_test).square().mean().sqrt().item()},
    }


def _trained(data: Split, kind: str) -> nn.Module:
    """Adam with mini-batches on four fifths of the training data, stopped early on the rest."""
    network = mlp(data.x.shape[1], 1, width=50, depth=2, activation="tanh" if kind == "tanh" else "relu").double()
    count = len(data.x) * 4 // 5
    x, y, x_held, y_held = data.x[:count], data.y[:count], data.x[count:], data.y[count:]
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    kept, best, waited = {}, float("inf"), 0
    for _ in range(300):
        for batch in torch.randperm(count).split(32):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(x[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            value = nn.functional.mse_loss(network(x_held), y_held).item()
        waited += 1
        if value < best:
            kept, best, waited = {k: v.clone() for k, v in network.state_dict().items()}, value, 0
        if waited > 20:
            break
    network.load_state_dict(kept)
    return network


def _normal_nll(y: Tensor, mean: Tensor, sigma: Tensor) -> float:
    return (0.5 * ((y - mean) / sigma).square() + sigma.log() + 0.5 * log(2 * pi)).mean().item()
