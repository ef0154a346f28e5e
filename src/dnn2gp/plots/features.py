"""A network on the plane as a GP: its decision boundary, features, kernel and posterior mean (Fig. 2)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from dnn2gp.plots import style
from dnn2gp.plots.plane import CLASSES, plane, points


def network_as_gp(
    inputs: np.ndarray,
    labels: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    probabilities: np.ndarray,
    features: np.ndarray,
    kernel: np.ndarray,
    posterior_mean: np.ndarray,
    marked: dict[str, int],
) -> Figure:
    """Four panels as in the paper; rows are grouped by class and sorted by the posterior mean within each class.

    Args:
        inputs: N × 2.
        labels: N classes, 0 or 1.
        x: The first coordinate of the map of probabilities.
        y: Its second coordinate.
        probabilities: The map, len(y) × len(x).
        features: N × P.
        kernel: N × N.
        posterior_mean: N.
        marked: Letter → the example that it marks in every panel.
    """
    count = len(inputs)
    if len(features) != count or kernel.shape != (count, count) or posterior_mean.shape != (count,):
        raise ValueError(
            f"features, kernel, posterior_mean: expected {count} rows of features, of the kernel and of the "
            f"posterior mean; got {features.shape}, {kernel.shape} and {posterior_mean.shape}."
        )
    order = np.lexsort((posterior_mean, labels))
    place = {name: int(np.flatnonzero(order == index)[0]) for name, index in marked.items()}
    figure = style.new_figure(13.6, 4.9)
    left, middle, right = figure.subfigures(1, 3, squeeze=False, width_ratios=[1.15, 0.95, 0.95])[0]
    axes = left.add_subplot()
    plane(axes, x, y, probabilities, probability=True)
    points(axes, inputs, labels)
    for name, index in marked.items():
        _pointed(axes, name, inputs[index])
    style.describe(axes, "(a) Two classes and the network", "x₁", "x₂")
    _features(middle.add_subplot(), features[order], labels[order], place)
    upper, lower = right.subplots(2, 1, height_ratios=[4, 1])
    _kernel(upper, kernel[np.ix_(order, order)], labels[order], place)
    _mean(lower, posterior_mean[order], labels[order], place)
    return figure


def _features(axes: Axes, features: np.ndarray, labels: np.ndarray, place: dict[str, int]) -> None:
    limit = style.colour_limit(features)
    axes.imshow(features, cmap=style.DIVERGING, norm=Normalize(-limit, limit), aspect="auto", interpolation="nearest")
    _bar(axes, labels, "left")
    _letters(axes, place)
    axes.set_yticks([])
    style.describe(axes, "(b) Features φ(x) = J(x)ᵀ", f"{features.shape[1]} weights", "")


def _kernel(axes: Axes, kernel: np.ndarray, labels: np.ndarray, place: dict[str, int]) -> None:
    limit = style.colour_limit(kernel)
    axes.imshow(kernel, cmap=style.DIVERGING, norm=Normalize(-limit, limit), aspect="auto", interpolation="nearest")
    _bar(axes, labels, "left")
    _bar(axes, labels, "top")
    _letters(axes, place)
    axes.set(xticks=[], yticks=[])
    axes.set_title("(c) Kernel φ(x)ᵀφ(x′)", fontsize=style.TITLE, loc="left", pad=16)


def _mean(axes: Axes, mean: np.ndarray, labels: np.ndarray, place: dict[str, int]) -> None:
    for label, colour in enumerate(CLASSES):
        own = np.flatnonzero(labels == label)
        axes.bar(own, mean[own], width=1.0, color=colour)
    for name, where in place.items():
        axes.annotate(
            name, (where, mean[where]), ha="center", va="bottom" if mean[where] >= 0 else "top", weight="bold"
        )
    axes.margins(y=0.25)
    axes.set_xlim(-0.5, len(mean) - 0.5)  # aligned with the columns of the kernel
    axes.set_xticks([])
    axes.axhline(0, color="black", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    style.describe(axes, "(d) Posterior mean of the GP", "examples, grouped by class", "")


def _bar(axes: Axes, labels: np.ndarray, side: str) -> None:
    """The classes along an axis."""
    vertical = side == "left"
    bar = axes.inset_axes((-0.05, 0.0, 0.035, 1.0) if vertical else (0.0, 1.015, 1.0, 0.035))
    values = labels[:, None] if vertical else labels[None, :]
    bar.imshow(values, cmap=ListedColormap(CLASSES), aspect="auto", interpolation="nearest", vmin=0, vmax=1)
    bar.set(xticks=[], yticks=[])
    bar.spines[:].set_visible(False)


def _letters(axes: Axes, place: dict[str, int]) -> None:
    """Letters next to the rows of the marked examples."""
    for name, row in place.items():
        axes.annotate(
            name,
            (1.0, row),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            weight="bold",
        )


def _pointed(axes: Axes, name: str, at: np.ndarray) -> None:
    axes.annotate(
        name,
        (float(at[0]), float(at[1])),
        xytext=(9, 9),
        textcoords="offset points",
        weight="bold",
        bbox={"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": "black", "linewidth": 0.6},
        arrowprops={"arrowstyle": "-", "linewidth": 0.8},
    )
