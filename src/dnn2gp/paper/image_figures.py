"""What the figures on images share: arrays of some examples per class, claims, pictures and interactive maps."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dnn2gp.paper.figure import Arrays, Drawings, FigureResult, Findings, Workspace, written
from dnn2gp.paper.image_networks import LAPLACE, VI, WORDS, ImagesConfig, load, pictures, trained_gp
from dnn2gp.plots.matrices import correlations, kernel_matrix, posterior_mean, uncertainty_maps
from dnn2gp.plots.report import Examples, InteractiveMap
from dnn2gp.plots.report.section import Claim

_MEAN = (
    "Each row is an example, each column an output of the network. J μ is not the network's output, because it "
    "lacks the term f − J w."
)
_KERNEL = "Each row and each column is an example; an entry measures how similar the two are to the network."


def compute(config: ImagesConfig, workspace: Workspace) -> Findings:
    """Train with every method, and evaluate the GP at some examples of each class."""
    images = load(config)
    places = _chosen(config, images.train_labels)
    inputs = images.train_images[places]
    arrays = {
        "images": pictures(config, inputs),
        "labels": images.train_labels[places].numpy(),
        "places": places.numpy(),
        "classes": np.array(images.classes),
    }
    for method in config.methods:
        gp = trained_gp(config, images, method, workspace)
        arrays[f"{method}_accuracy"] = np.array(gp.accuracy)
        arrays |= {f"{method}_{name}": values for name, values in gp.arrays(inputs).items()}
    return Findings(arrays)


def _chosen(config: ImagesConfig, labels: Int[Tensor, " N"]) -> Int[Tensor, " n"]:
    """The first `per_class` examples of each class among the first `pool`, class by class."""
    pool = labels[: config.pool]
    return torch.cat([(pool == own).nonzero()[: config.per_class, 0] for own in pool.unique()])


def methods_in(arrays: Arrays) -> list[str]:
    """The methods that the arrays are about."""
    return [method for method in (LAPLACE, VI) if f"{method}_kernel" in arrays]


def same_class_means(values: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The mean entry over pairs within a class, the diagonal excluded, and over pairs of different classes."""
    same = labels[:, None] == labels[None, :]
    others = ~np.eye(len(labels), dtype=bool)
    return float(values[same & others].mean()), float(values[~same].mean())


def accuracy_claim(arrays: Arrays, method: str, paper: str, low: float, high: float = 1.0) -> Claim:
    """The test accuracy, which the paper gives for Adam alone; it holds between `low` and `high`."""
    accuracy = float(arrays[f"{method}_accuracy"])
    if method == LAPLACE:
        return Claim("test accuracy of LeNet-5 trained with Adam", paper, f"{accuracy:.2%}", low <= accuracy <= high)
    return Claim("test accuracy of LeNet-5 trained with VOGN, at the mean", "not stated", f"{accuracy:.2%}", None)


def kernel_claim(name: str, arrays: Arrays, method: str, paper: str) -> Claim:
    """The kernel is larger within a class than between classes."""
    kernel, labels = arrays[f"{method}_kernel"], arrays["labels"]
    same, other = same_class_means(kernel, labels)
    ratio = f", a ratio of {same / other:.2f}" if other > 0 else ""
    within, between = same_class_means(correlations(kernel), labels)
    return Claim(
        f"{name}, {WORDS[method]}: kernel entries are larger within a class than between classes",
        paper,
        f"mean {written(same)} versus {written(other)}{ratio}; as correlations {within:.2f} versus {between:.2f}",
        same > other,
    )


def posterior_mean_claim(arrays: Arrays, method: str, paper: str) -> Claim:
    """The posterior mean is largest for the true class."""
    share = float((arrays[f"{method}_posterior_mean"].argmax(1) == arrays["labels"]).mean())
    return Claim(
        f"{WORDS[method]}: the posterior mean reflects the classes",
        f"{paper} (here: for more than half)",
        f"largest for the true class at {share:.0%} of the training examples shown",
        share > 0.5,
    )


def draw(result: FigureResult, name: str) -> Drawings:
    """Kernel, posterior mean and uncertainties of each method."""
    own, labels = result.arrays, result.arrays["labels"]
    names = tuple(map(str, own["classes"]))
    drawn: Drawings = {}
    for method in methods_in(own):
        of = f"{name}, {WORDS[method]}"
        drawn[f"{method}-kernel"] = kernel_matrix(own[f"{method}_kernel"], labels, names, of=of)
        drawn[f"{method}-posterior-mean"] = posterior_mean(own[f"{method}_posterior_mean"], labels, names, of=of)
        drawn[f"{method}-uncertainty"] = uncertainty_maps(
            own[f"{method}_epistemic"], own[f"{method}_aleatoric"], labels, names, of=of
        )
    return drawn


def maps(result: FigureResult) -> tuple[InteractiveMap, ...]:
    """Kernel and posterior mean of each method."""
    own, found = result.arrays, []
    trained = np.array(list(result.config["classes"]) or range(len(own["classes"])))  # those of the outputs
    for method in methods_in(own):
        probabilities = own[f"{method}_probabilities"]
        examples = Examples(
            images=own["images"],
            labels=own["labels"],
            classes=tuple(map(str, own["classes"])),
            predictions=trained[probabilities.argmax(1)],
            probabilities=probabilities.max(1),
            epistemic=own[f"{method}_epistemic"].sum(1),
            aleatoric=own[f"{method}_aleatoric"].sum(1),
        )
        found.append(kernel_map(f"Kernel, {WORDS[method]}", own[f"{method}_kernel"], examples))
        found.append(
            InteractiveMap(
                title=f"Posterior mean, {WORDS[method]}",
                values=own[f"{method}_posterior_mean"],
                columns=tuple(str(own["classes"][place]) for place in trained),
                examples=examples,
                scale="J(x) μ",
                description=_MEAN,
            )
        )
    return tuple(found)


def kernel_map(title: str, values: np.ndarray, examples: Examples) -> InteractiveMap:
    """A kernel between examples."""
    return InteractiveMap(
        title=title, values=values, columns=None, examples=examples, scale="tr κ(x, x′)", description=_KERNEL
    )
