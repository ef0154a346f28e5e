"""Fig. 2: a network in the plane, its feature matrix, kernel and posterior mean, and four points to follow."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dnn2gp.gp.convert import convert
from dnn2gp.likelihoods import BernoulliLikelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.paper.datasets import bent_clouds
from dnn2gp.paper.figure_result import FigureResult, check_preset, plain, written
from dnn2gp.paper.small import flat_weights, sides, train_best
from dnn2gp.plots.report.claim import Claim

POINTS = "ABCD"


@dataclass(frozen=True)
class TwoDConfig:
    """2 → 128 → 1: 513 weights, as in the paper, which says no more; δ, activation and data are chosen here."""

    num_examples: int = 100
    width: int = 128
    prior_precision: float = 0.1
    restarts: int = 1
    max_iterations: int = 500
    resolution: int = 120
    extent: tuple[float, float, float, float] = (-4.0, 3.5, -4.0, 4.0)
    seed: int = 0

    @staticmethod
    def preset(name: str) -> TwoDConfig:
        """`paper`, or `smoke`: a little of it."""
        if check_preset(name) == "smoke":
            return TwoDConfig(num_examples=20, width=8, max_iterations=50, resolution=15)
        return TwoDConfig()


def run(config: TwoDConfig) -> FigureResult:
    """Train to a minimum, convert, and take features, kernel and posterior mean of the training points."""
    begin = time.perf_counter()
    data = bent_clouds(config.num_examples, config.seed)
    targets = data.labels.double()[:, None]

    def build() -> nn.Module:
        return mlp(2, 1, width=config.width).double()

    found = train_best(build, data.inputs, targets, BernoulliLikelihood(), config)
    gp = convert(found.network, (data.inputs, targets), BernoulliLikelihood(), config.prior_precision)
    x, y, points = sides(config.extent, config.resolution)
    with torch.no_grad():
        outputs = found.network(data.inputs)[:, 0]
    arrays = {
        "inputs": data.inputs.numpy(),
        "labels": data.labels.numpy(),
        "x": x.numpy(),
        "y": y.numpy(),
        "plane": gp.predict(points).mean[:, 0].reshape(len(y), len(x)).numpy(),
        "features": gp.features.jacobian(data.inputs)[:, 0].numpy(),
        "kernel": gp.kernel.full(data.inputs)[:, 0, :, 0].numpy() * config.prior_precision,
        "posterior_mean": gp.mean(data.inputs)[:, 0].numpy(),
        "outputs": outputs.numpy(),
        "points": _points(outputs, data.labels),
        "relative_gradient": np.array(found.relative_gradient),
    }
    seconds = time.perf_counter() - begin
    weights = {"network": flat_weights(found.network)}
    return FigureResult("two_d", plain(config), arrays, claims(arrays, config), seconds, weights=weights)


def _points(outputs: Tensor, labels: Tensor) -> np.ndarray:
    """A and D: of each class the one nearest to the border of the network; B and C: the ones farthest from it."""
    signed = torch.where(labels == 1, outputs, -outputs)
    chosen = []
    for label, ends in ((0, (torch.argmin, torch.argmax)), (1, (torch.argmax, torch.argmin))):
        own = (labels == label).nonzero()[:, 0]
        chosen += [int(own[end(signed[own])]) for end in ends]
    return np.array(chosen)


def claims(arrays: dict[str, np.ndarray], config: TwoDConfig) -> tuple[Claim, ...]:
    """The GP's posterior mean parts the classes, and border points stay border points."""
    mean, labels, points = arrays["posterior_mean"], arrays["labels"], arrays["points"]
    order = np.argsort(mean)
    split, cut = max((float(((mean > cut) == (labels == 1)).mean()), float(cut)) for cut in mean[order])
    share = {}
    for name, place in zip(POINTS, points, strict=True):
        own = labels == labels[place]
        inner = mean[own] > mean[place] if labels[place] == 1 else mean[own] < mean[place]
        share[name] = float(inner.sum() / max(1, own.sum() - 1))
    return (
        Claim(
            "the posterior mean of the GP parts the two classes",
            "Fig. 2(d): a clear separation",
            f"one threshold, at {written(cut, '.2g')}, puts {split:.0%} of the points on the right side",
            split >= 0.95,
        ),
        Claim(
            "border points A and D are at the border of the posterior mean too",
            "Fig. 2: A and D are at the boundary in (a) and in (d)",
            f"in the order of the posterior mean, {share['A']:.0%} and {share['D']:.0%} of their classes lie farther "
            "out",
            min(share["A"], share["D"]) >= 0.8,
        ),
    )
