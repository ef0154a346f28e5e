"""Fig. 9: half moons. The mean, the label noise and the model uncertainty of a small network over the plane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from dnn2gp.gp.convert import convert
from dnn2gp.inference.mean import GaussNewtonStep
from dnn2gp.likelihoods import BernoulliLikelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.paper.datasets import half_moons
from dnn2gp.paper.figure import Arrays, Drawings, FigureKind, FigureResult, Findings, Workspace
from dnn2gp.paper.small_networks import plane_grid, train_restarts
from dnn2gp.plots.plane import plane_maps
from dnn2gp.plots.report.section import Claim
from dnn2gp.tune.ensemble import read_weights


@dataclass(frozen=True)
class MoonsConfig:
    """One hidden layer of tanh units, trained to a minimum with the paper's δ."""

    num_examples: int = 100
    noise: float = 0.2
    width: int = 10
    prior_precision: float = 0.26
    restarts: int = 5
    """Training runs from different initial weights; the one with the smallest loss is used."""
    max_iterations: int = 500
    resolution: int = 120
    """Points along each side of the plane."""
    extent: tuple[float, float, float, float] = (-4.0, 5.0, -4.0, 4.5)
    seed: int = 0


def compute(config: MoonsConfig, workspace: Workspace) -> Findings:
    """Train, convert, and predict over the plane."""
    points = half_moons(config.num_examples, config.noise, config.seed)
    data, likelihood = (points.inputs, points.labels.double()[:, None]), BernoulliLikelihood()

    def build() -> nn.Module:
        return mlp(2, 1, width=config.width).double()

    network, minima = train_restarts(
        build,
        data,
        likelihood,
        config.prior_precision,
        restarts=config.restarts,
        max_iterations=config.max_iterations,
        seed=config.seed,
    )
    gp = convert(network, data, likelihood, config.prior_precision, mean=GaussNewtonStep())
    x, y, grid = plane_grid(config.extent, config.resolution)
    plane, own = gp.predict(grid), gp.predict(points.inputs)
    shape = (len(y), len(x))
    arrays = {
        "inputs": points.inputs.numpy(),
        "labels": points.labels.numpy(),
        "x": x.numpy(),
        "y": y.numpy(),
        "mean": plane.mean[:, 0].reshape(shape).numpy(),
        "aleatoric": plane.aleatoric[:, 0].reshape(shape).numpy(),
        "epistemic": plane.epistemic[:, 0].reshape(shape).numpy(),
        "latent": plane.latent_covariance[:, 0, 0].reshape(shape).numpy(),
        "own_epistemic": own.epistemic[:, 0].numpy(),
        "own_latent": own.latent_covariance[:, 0, 0].numpy(),
        "relative_gradient": minima.relative_gradient[minima.best].numpy(),
    }
    return Findings(arrays, {"network": read_weights(network).numpy()})


def claims(arrays: Arrays, config: MoonsConfig) -> tuple[Claim, ...]:
    """Label noise follows the boundary; model uncertainty grows away from the data."""
    mean, aleatoric = arrays["mean"], arrays["aleatoric"]
    near = np.abs(mean - 0.5) < 0.1
    rim, at_data = _rim(arrays["epistemic"]), arrays["epistemic"][near & _near_data(arrays)]
    at_rim = rim[np.abs(_rim(mean) - 0.5) < 0.1]
    everywhere = float(np.median(rim) / np.median(arrays["own_epistemic"]))
    growth = float(np.median(_rim(arrays["latent"])) / np.median(arrays["own_latent"]))
    return (
        Claim(
            "label noise (aleatoric) is concentrated at the decision boundary",
            "Fig. 9(b): high along the decision boundary",
            f"where 0.4 < p < 0.6 it is {_times(aleatoric[near], aleatoric[~near], '.1f')} that elsewhere; this "
            "follows from its definition, p (1 − p)",
            None,
        ),
        Claim(
            "model uncertainty (epistemic) grows away from the data along the boundary",
            "Fig. 9(c): grows away from the data",
            f"where 0.4 < p < 0.6, at the rim of the plane it is {_times(at_rim, at_data, '.3g')} that near the data; "
            "as (p (1 − p))² times the variance of f, it vanishes away from the boundary (medians over all p: at the "
            f"rim {everywhere:.2g} times that at the data)",
            bool(at_rim.mean() > at_data.mean()) if len(at_rim) and len(at_data) else None,
        ),
        Claim(
            "the variance of f itself grows away from the data",
            "not stated",
            f"at the rim of the plane it is {growth:.1f} times that at the data (medians)",
            None,
        ),
    )


def draw(result: FigureResult) -> Drawings:
    """Four maps of the plane."""
    own = result.arrays
    maps = {
        "Mean: probability of one class": own["mean"],
        "Aleatoric: label noise": own["aleatoric"],
        "Epistemic: model uncertainty": own["epistemic"],
        "Variance of f behind it": own["latent"],
    }
    words = ("p(y = 1)", "variance of y given f", "(p (1 − p))² var f (to first order)", "var f")
    scales: dict[str, str] = dict(zip(maps, words, strict=True))
    return {"": plane_maps(own["x"], own["y"], maps, own["inputs"], own["labels"], scales=scales)}


def _times(one: np.ndarray, other: np.ndarray, form: str) -> str:
    """The ratio of two means, if there are points in both."""
    return f"{one.mean() / other.mean():{form}} times" if len(one) and len(other) else "at no points to compare with"


def _rim(values: np.ndarray) -> np.ndarray:
    """The outermost points of the plane."""
    return np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])


def _near_data(arrays: Arrays) -> np.ndarray:
    """Which points of the plane are inside the bounding box of the data, H × W."""
    (left, low), (right, high) = arrays["inputs"].min(0), arrays["inputs"].max(0)
    x, y = arrays["x"], arrays["y"]
    return ((y >= low) & (y <= high))[:, None] & ((x >= left) & (x <= right))[None, :]


FIGURE = FigureKind(
    name="moons",
    order=90,
    title="Fig. 9: two kinds of uncertainty over the plane",
    caption="Label noise (aleatoric) is high at the boundary between the classes; model uncertainty (epistemic) grows "
    "along the boundary, away from the data. Both are variances of a label that is 0 or 1. The second is computed to "
    "first order, as (p (1 − p))² times the variance of f, which the last map shows. Far from the data the variance of "
    "f is much larger than ¼, the largest variance that such a label can have; the epistemic variance vanishes where "
    "the network is certain. The line is p = ½.",
    paper=MoonsConfig(),
    smoke=MoonsConfig(num_examples=40, width=4, restarts=1, max_iterations=50, resolution=15),
    compute=compute,
    claims=claims,
    draw=draw,
)
