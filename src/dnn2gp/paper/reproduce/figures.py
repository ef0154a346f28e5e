"""The list of figures: what each is, how it is run, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dnn2gp.paper.figure_result import FigureResult
from dnn2gp.paper.figures import (
    binary_mnist,
    cifar,
    mnist,
    moons,
    ood,
    snelson,
    tune_synthetic,
    tune_wine,
    two_d,
    width,
)
from dnn2gp.paper.reproduce import drawings, maps
from dnn2gp.paper.reproduce.drawings import Drawings
from dnn2gp.plots.report import InteractiveMap
from dnn2gp.plots.report.claim import Claim


@dataclass(frozen=True)
class Place:
    """Where a run keeps what it may go on from: its own folder, and the trained networks, which figures share."""

    work: Path
    weights: Path
    resume: bool


@dataclass(frozen=True)
class FigureKind:
    """One figure of the paper, or beyond it."""

    name: str
    title: str
    caption: str
    preset: Callable[[str], Any]
    """The configuration, by name."""
    run: Callable[[Any, Place], FigureResult]
    claims: Callable[[dict[str, np.ndarray], Any], tuple[Claim, ...]]
    """What the paper says of it, of arrays and configuration alone."""
    draw: Callable[[FigureResult], Drawings]
    maps: Callable[[FigureResult], tuple[InteractiveMap, ...]] = lambda result: ()
    network: str = ""
    """The name under which its trained networks are kept."""


def _alone(run: Callable[[Any], FigureResult]) -> Callable[[Any, Place], FigureResult]:
    """A run of seconds, which keeps nothing."""
    return lambda config, place: run(config)


def _resumable(run: Callable[[Any, Path, bool], FigureResult]) -> Callable[[Any, Place], FigureResult]:
    return lambda config, place: run(config, place.work, place.resume)


def _on_images(run: Callable[[Any, Path], FigureResult]) -> Callable[[Any, Place], FigureResult]:
    return lambda config, place: run(config, place.weights)


_ALL = (
    FigureKind(
        "two_d",
        "Fig. 2: a network in the plane becomes a GP",
        "(a) the network's probabilities, (b) the features of all examples, grouped by class and within it by the "
        "posterior mean, (c) their kernel, (d) the posterior mean J μ of the GP, which is not the network's output: "
        "f − J w is missing from it; red above 0, blue below. A and D are the points of each class nearest to the "
        "border of the network, B and C the farthest from it. The paper says no more of the data than their number; "
        "these are made here.",
        two_d.TwoDConfig.preset,
        _alone(two_d.run),
        two_d.claims,
        drawings.two_d,
    ),
    FigureKind(
        "snelson",
        "Fig. 3: bands on Snelson's data with a gap",
        "One standard deviation of y, noise included. DNN: networks sampled from the diagonal Gaussian (Laplace) or "
        "from q (VI). The GP of the VI panel has δ = 0.1, as in the paper's runs, its training 0.05. The shaded "
        "interval has no data.",
        snelson.SnelsonConfig.preset,
        _alone(snelson.run),
        snelson.claims,
        drawings.snelson,
    ),
    FigureKind(
        "mnist",
        "Figs. 4(a) and 7: LeNet-5 on MNIST",
        "Some training images of each digit. Kernel: tr J Jᵀ for Laplace, tr J Σ Jᵀ with the covariance Σ of q for VI. "
        "Posterior mean: J μ, which is not the network's output: f − J w is missing from it. δ is that of the summed "
        "loss, N times the weight decay; the posterior is diagonal.",
        mnist.preset,
        _on_images(mnist.run),
        mnist.claims,
        drawings.images,
        maps.images,
        "mnist",
    ),
    FigureKind(
        "binary_mnist",
        "Fig. 4(c): trained on 0 and 1, looked at on all digits",
        "VOGN saw the digits 0 and 1 only; kernel and posterior mean of some images of every digit.",
        binary_mnist.preset,
        _on_images(binary_mnist.run),
        binary_mnist.claims,
        drawings.images,
        maps.images,
        "binary_mnist",
    ),
    FigureKind(
        "cifar",
        "Figs. 4(b, d), 7 and 8: LeNet-5 on CIFAR-10",
        "Some training images of each class: 0 airplane, 1 automobile, 2 bird, 3 cat, 4 deer, 5 dog, 6 frog, 7 horse, "
        "8 ship, 9 truck. δ is that of the summed loss; the posterior is diagonal.",
        cifar.preset,
        _on_images(cifar.run),
        cifar.claims,
        drawings.images,
        maps.images,
        "cifar",
    ),
    FigureKind(
        "tune_synthetic",
        "Fig. 5: δ by the evidence on a synthetic regression",
        "The noise is fixed at σ = 1, as in the paper. Means over the draws and their standard errors; stars at the "
        "least test error and at the largest evidence.",
        tune_synthetic.TuneSyntheticConfig.preset,
        _resumable(tune_synthetic.run),
        tune_synthetic.claims,
        drawings.tune_synthetic,
    ),
    FigureKind(
        "tune_wine",
        "Fig. 6: δ, σ and width by the evidence on Red Wine Quality",
        "Means over twenty splits and their standard errors; errors in units of quality.",
        tune_wine.TuneWineConfig.preset,
        _resumable(tune_wine.run),
        tune_wine.claims,
        drawings.tune_wine,
    ),
    FigureKind(
        "moons",
        "Fig. 9: two kinds of uncertainty over the plane",
        "Label noise (aleatoric) belongs to the border of the classes; what the model does not know (epistemic) grows "
        "along the border, away from the data. Both are variances of a label of 0 or 1, the second to first order, "
        "(p (1 − p))² times the variance of f, which is drawn at the right: far from the data it is far beyond ¼, the "
        "most that such a label can have, and it vanishes where the network is sure. The line is p = ½.",
        moons.MoonsConfig.preset,
        _alone(moons.run),
        moons.claims,
        drawings.moons,
    ),
    FigureKind(
        "width",
        "Beyond the paper: towards infinitely many units",
        "Kernels of networks of error functions at random weights beside the exact kernels of infinitely many units "
        "(Williams, 1997, for the last layer alone), and the GPs that come of them.",
        width.WidthConfig.preset,
        _alone(width.run),
        width.claims,
        drawings.width,
    ),
    FigureKind(
        "ood",
        "Beyond the paper: a network of digits sees clothes",
        "LeNet-5 trained on MNIST looks at test images of MNIST and Fashion-MNIST. AUROC: the chance that an image of "
        "clothes has the larger score. Kernels: by class within each set.",
        ood.preset,
        _on_images(ood.run),
        ood.claims,
        drawings.ood,
        maps.ood,
        "mnist",
    ),
)
FIGURES: dict[str, FigureKind] = {kind.name: kind for kind in _ALL}
