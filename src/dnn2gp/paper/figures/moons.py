"""Fig. 9: half moons. The mean, the label noise and the ignorance of a small network over the plane."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from torch import nn

from dnn2gp.gp.convert import convert
from dnn2gp.likelihoods import BernoulliLikelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.paper.datasets import half_moons
from dnn2gp.paper.figure_result import FigureResult, check_preset, plain
from dnn2gp.paper.small import flat_weights, sides, train_best
from dnn2gp.plots.report.claim import Claim


@dataclass(frozen=True)
class MoonsConfig:
    """One hidden layer of tanh units, trained to a minimum with the paper's δ."""

    num_examples: int = 100
    noise: float = 0.2
    width: int = 10
    prior_precision: float = 0.26
    restarts: int = 5
    """Trainings from other first weights, of which the one of the smallest loss is taken."""
    max_iterations: int = 500
    resolution: int = 120
    """Points along each side of the plane."""
    extent: tuple[float, float, float, float] = (-4.0, 5.0, -4.0, 4.5)
    seed: int = 0

    @staticmethod
    def preset(name: str) -> MoonsConfig:
        """`paper`, or `smoke`: a little of it."""
        if check_preset(name) == "smoke":
            return MoonsConfig(num_examples=40, width=4, restarts=1, max_iterations=50, resolution=15)
        return MoonsConfig()


def run(config: MoonsConfig) -> FigureResult:
    """Train, convert, and predict over the plane."""
    begin = time.perf_counter()
    data = half_moons(config.num_examples, config.noise, config.seed)
    targets, likelihood = data.labels.double()[:, None], BernoulliLikelihood()

    def build() -> nn.Module:
        return mlp(2, 1, width=config.width).double()

    found = train_best(build, data.inputs, targets, likelihood, config)
    gp = convert(found.network, (data.inputs, targets), likelihood, config.prior_precision)
    x, y, points = sides(config.extent, config.resolution)
    plane, own = gp.predict(points), gp.predict(data.inputs)
    shape = (len(y), len(x))
    arrays = {
        "inputs": data.inputs.numpy(),
        "labels": data.labels.numpy(),
        "x": x.numpy(),
        "y": y.numpy(),
        "mean": plane.mean[:, 0].reshape(shape).numpy(),
        "aleatoric": plane.aleatoric[:, 0].reshape(shape).numpy(),
        "epistemic": plane.epistemic[:, 0].reshape(shape).numpy(),
        "latent": plane.latent_covariance[:, 0, 0].reshape(shape).numpy(),
        "own_epistemic": own.epistemic[:, 0].numpy(),
        "own_latent": own.latent_covariance[:, 0, 0].numpy(),
        "relative_gradient": np.array(found.relative_gradient),
    }
    seconds = time.perf_counter() - begin
    weights = {"network": flat_weights(found.network)}
    return FigureResult("moons", plain(config), arrays, claims(arrays, config), seconds, weights=weights)


def claims(arrays: dict[str, np.ndarray], config: MoonsConfig) -> tuple[Claim, ...]:
    """The label noise is that of the boundary; the model's uncertainty grows away from the data."""
    mean, aleatoric, latent = arrays["mean"], arrays["aleatoric"], arrays["latent"]
    near = np.abs(mean - 0.5) < 0.1
    ratio = _times(aleatoric[near], aleatoric[~near], ".1f")
    drawn, own = _rim(arrays["epistemic"]), arrays["own_epistemic"]
    border = np.abs(_rim(mean) - 0.5) < 0.1
    at_data = near & _near_data(arrays)
    there, here = drawn[border], arrays["epistemic"][at_data]
    everywhere = float(np.median(drawn) / np.median(own))
    growth = float(np.median(_rim(latent)) / np.median(arrays["own_latent"]))
    return (
        Claim(
            "label noise (aleatoric) belongs to the boundary",
            "Fig. 9(b): high along the decision boundary",
            f"where 0.4 < p < 0.6 beside elsewhere: {ratio}, as it must be: it is p (1 − p)",
            None,
        ),
        Claim(
            "model uncertainty (epistemic) grows away from the data along the boundary",
            "Fig. 9(c): grows away from the data",
            f"where 0.4 < p < 0.6, the rim of the plane beside the data: {_times(there, here, '.3g')}; it is "
            f"(p (1 − p))² times the variance of f, so it vanishes off the boundary (medians: at the rim "
            f"{everywhere:.2g} times that at the data)",
            bool(there.mean() > here.mean()) if len(there) and len(here) else None,
        ),
        Claim(
            "the variance of f itself grows away from the data",
            "not said",
            f"at the rim of the plane {growth:.1f} times that at the data (medians)",
            None,
        ),
    )


def _times(one: np.ndarray, other: np.ndarray, form: str) -> str:
    """How many times the mean of some points is that of others, if there are any."""
    return f"{one.mean() / other.mean():{form}} times" if len(one) and len(other) else "no such points"


def _rim(values: np.ndarray) -> np.ndarray:
    """The outermost points of the plane."""
    return np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])


def _near_data(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The points of the plane inside the box around the data, H × W."""
    (left, low), (right, high) = arrays["inputs"].min(0), arrays["inputs"].max(0)
    x, y = arrays["x"], arrays["y"]
    return ((y >= low) & (y <= high))[:, None] & ((x >= left) & (x <= right))[None, :]
