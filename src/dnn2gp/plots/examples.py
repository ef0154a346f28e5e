"""Examples sorted by the certainty of their predictions, with their images."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from dnn2gp.plots import style


def uncertainty(
    epistemic: np.ndarray,
    aleatoric: np.ndarray,
    images: np.ndarray,
    labels: np.ndarray,
    predictions: np.ndarray,
    probabilities: np.ndarray,
    num_examples: int = 10,
) -> Figure:
    """The two uncertainties of each example, and the images of the least and the most certain examples.

    Args:
        epistemic: One variance ≥ 0 per example, for instance summed over the classes.
        aleatoric: The same. Examples are sorted by the sum of both variances.
        images: N × H × W, dark where large.
        labels: The true class of each example.
        predictions: The predicted class of each example.
        probabilities: The probability of the predicted class.
        num_examples: The number of images in each of the two galleries.
    """
    _check(epistemic, aleatoric, images, labels, predictions, probabilities)
    order = np.argsort(epistemic + aleatoric, kind="stable")
    shown = min(num_examples, len(order))
    figure = style.new_figure(12.6, 5.4)
    grid = figure.add_gridspec(2, 2, width_ratios=[1, 1.35])
    _scatter(figure.add_subfigure(grid[:, 0]).add_subplot(), epistemic, aleatoric, predictions == labels)
    least, most = figure.add_subfigure(grid[0, 1]), figure.add_subfigure(grid[1, 1])
    _gallery(
        least,
        "Least certain: largest sum of both variances (p: probability of the predicted class)",
        order[::-1][:shown],
        images,
        labels,
        predictions,
        probabilities,
    )
    _gallery(
        most,
        "Most certain: smallest sum of both variances",
        order[:shown],
        images,
        labels,
        predictions,
        probabilities,
    )
    return figure


def _scatter(axes: Axes, epistemic: np.ndarray, aleatoric: np.ndarray, correct: np.ndarray) -> None:
    """Each example by its two variances: blue dots for correct predictions, red crosses for wrong ones."""
    floor = 1e-12  # log axes: a variance that underflowed is drawn at the edge
    x, y = np.maximum(aleatoric, floor), np.maximum(epistemic, floor)
    wrong = ~correct
    axes.scatter(x[correct], y[correct], s=12, c=style.RIGHT, alpha=0.6, label=f"correct ({correct.sum()})")
    axes.scatter(x[wrong], y[wrong], s=45, marker="x", c=style.WRONG, label=f"wrong ({wrong.sum()})")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="prediction", fontsize=style.TICK, title_fontsize=style.TICK, loc="upper left")
    style.describe(
        axes,
        "Two kinds of uncertainty, one marker per example",
        "aleatoric variance (label noise)",
        "epistemic variance (model uncertainty)",
    )


def _gallery(
    figure: SubFigure,
    title: str,
    chosen: np.ndarray,
    images: np.ndarray,
    labels: np.ndarray,
    predictions: np.ndarray,
    probabilities: np.ndarray,
) -> None:
    """The images in rows of five, each with its label, prediction and probability; wrong predictions in red."""
    columns = 5
    rows = -(-len(chosen) // columns)
    figure.suptitle(title, fontsize=style.TITLE, x=0.02, ha="left")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("#cccccc")
    for axes in panels.flat[len(chosen) :]:
        axes.set_axis_off()
    for axes, index in zip(panels.flat, chosen, strict=False):
        wrong = predictions[index] != labels[index]
        colour = style.WRONG if wrong else "black"
        axes.imshow(images[index], cmap="gray_r", interpolation="nearest")
        text = f"true {labels[index]}, predicted {predictions[index]}\np = {probabilities[index]:.2f}"
        axes.text(
            0.5, -0.05, text, transform=axes.transAxes, ha="center", va="top", fontsize=style.TICK - 1, color=colour
        )


def _check(epistemic: np.ndarray, aleatoric: np.ndarray, images: np.ndarray, *others: np.ndarray) -> None:
    count = len(images)
    if images.ndim != 3 or count == 0 or any(array.shape != (count,) for array in (epistemic, aleatoric, *others)):
        shapes = [array.shape for array in (epistemic, aleatoric, images, *others)]
        raise ValueError(f"images: expected N × H × W, and one value per image elsewhere; got shapes {shapes}.")
    if not (np.isfinite(epistemic).all() and np.isfinite(aleatoric).all()) or min(epistemic.min(), aleatoric.min()) < 0:
        raise ValueError("epistemic, aleatoric: expected finite variances ≥ 0.")
