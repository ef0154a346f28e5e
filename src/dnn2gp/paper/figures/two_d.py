"""Fig. 2: a network in the plane, its feature matrix, kernel and posterior mean, and four points to follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dnn2gp.gp.convert import convert
from dnn2gp.inference.mean import GaussNewtonStep
from dnn2gp.likelihoods import BernoulliLikelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.paper.datasets import bent_clouds
from dnn2gp.paper.figure import Arrays, Drawings, FigureKind, FigureResult, Findings, Workspace, written
from dnn2gp.paper.small_networks import plane_grid, train_restarts
from dnn2gp.plots.features import network_as_gp
from dnn2gp.plots.report.section import Claim
from dnn2gp.tune.ensemble import read_weights

_POINTS = "ABCD"


@dataclass(frozen=True)
class TwoDConfig:
    """2 → 128 → 1: 513 weights, as in the paper, which does not give δ, activation or data: these are our choice."""

    num_examples: int = 100
    width: int = 128
    prior_precision: float = 0.1
    max_iterations: int = 500
    resolution: int = 120
    extent: tuple[float, float, float, float] = (-4.0, 3.5, -4.0, 4.0)
    seed: int = 0


def compute(config: TwoDConfig, workspace: Workspace) -> Findings:
    """Train to a minimum, convert, and evaluate features, kernel and posterior mean at the training points."""
    points, likelihood = bent_clouds(config.num_examples, config.seed), BernoulliLikelihood()
    data = points.inputs, points.labels.double()[:, None]
    effort = {"restarts": 1, "max_iterations": config.max_iterations, "seed": config.seed}
    network, minimum = train_restarts(lambda: _network(config), data, likelihood, config.prior_precision, **effort)
    gp = convert(network, data, likelihood, config.prior_precision, mean=GaussNewtonStep())
    x, y, grid = plane_grid(config.extent, config.resolution)
    with torch.no_grad():
        outputs = network(points.inputs)[:, 0]
    arrays = {
        "inputs": points.inputs.numpy(),
        "labels": points.labels.numpy(),
        "x": x.numpy(),
        "y": y.numpy(),
        "plane": gp.predict(grid).mean[:, 0].reshape(len(y), len(x)).numpy(),
        "features": gp.features.jacobian(points.inputs)[:, 0].numpy(),
        "kernel": gp.kernel.full(points.inputs)[:, 0, :, 0].numpy() * config.prior_precision,
        "posterior_mean": gp.mean(points.inputs)[:, 0].numpy(),
        "outputs": outputs.numpy(),
        "points": _border_and_inner(outputs, points.labels),
        "relative_gradient": minimum.relative_gradient[0].numpy(),
    }
    return Findings(arrays, {"network": read_weights(network).numpy()})


def _network(config: TwoDConfig) -> nn.Module:
    return mlp(2, 1, width=config.width).double()


def _border_and_inner(outputs: Tensor, labels: Tensor) -> np.ndarray:
    """A and D: the point of each class closest to the network's boundary; B and C: the farthest from it."""
    signed = torch.where(labels == 1, outputs, -outputs)
    chosen = []
    for label, ends in ((0, (torch.argmin, torch.argmax)), (1, (torch.argmax, torch.argmin))):
        own = (labels == label).nonzero()[:, 0]
        chosen += [int(own[end(signed[own])]) for end in ends]
    return np.array(chosen)


def claims(arrays: Arrays, config: TwoDConfig) -> tuple[Claim, ...]:
    """The GP's posterior mean separates the classes, and points at the boundary stay there."""
    mean, labels, points = arrays["posterior_mean"], arrays["labels"], arrays["points"]
    split, cut = max((float(((mean > cut) == (labels == 1)).mean()), float(cut)) for cut in np.sort(mean))
    share = {}
    for name, place in zip(_POINTS, points, strict=True):
        own = labels == labels[place]
        inner = mean[own] > mean[place] if labels[place] == 1 else mean[own] < mean[place]
        share[name] = float(inner.sum() / max(1, own.sum() - 1))
    return (
        Claim(
            "the GP's posterior mean separates the two classes",
            "Fig. 2(d): a clear separation",
            f"one threshold, at {written(cut, '.2g')}, puts {split:.0%} of the points on the right side",
            split >= 0.95,
        ),
        Claim(
            "A and D are at the boundary of the posterior mean too",
            "Fig. 2: A and D are at the boundary in (a) and in (d)",
            f"ordered by posterior mean, {share['A']:.0%} and {share['D']:.0%} of their classes lie farther from the "
            "boundary",
            min(share["A"], share["D"]) >= 0.8,
        ),
    )


def draw(result: FigureResult) -> Drawings:
    """All four panels in one picture."""
    own = result.arrays
    figure = network_as_gp(
        inputs=own["inputs"],
        labels=own["labels"],
        x=own["x"],
        y=own["y"],
        probabilities=own["plane"],
        features=own["features"],
        kernel=own["kernel"],
        posterior_mean=own["posterior_mean"],
        marked={name: int(place) for name, place in zip(_POINTS, own["points"], strict=True)},
    )
    return {"": figure}


FIGURE = FigureKind(
    name="two_d",
    order=20,
    title="Fig. 2: a network in the plane becomes a GP",
    caption="(a) The network's probabilities. (b) The features of all examples, grouped by class and ordered by "
    "posterior mean within each class. (c) Their kernel. (d) The GP's posterior mean J μ, red above 0 and blue "
    "below. It is not the network's output, because it lacks the term f − J w. A and D are the points of each "
    "class closest to the network's decision boundary, B and C the farthest from it. The paper gives only the "
    "numbers of points and weights; the data is our own.",
    paper=TwoDConfig(),
    smoke=TwoDConfig(num_examples=20, width=8, max_iterations=50, resolution=15),
    compute=compute,
    claims=claims,
    draw=draw,
)
