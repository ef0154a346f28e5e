"""Maps of the plane with the data: the mean and both uncertainties for two classes (Fig. 9)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from dnn2gp.plots import style

CLASSES = ("#1f77b4", "#ff7f0e")
"""Blue and orange, as in the paper."""
_MARKS = ("o", "^")


def plane_maps(
    x: np.ndarray,
    y: np.ndarray,
    maps: dict[str, np.ndarray],
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    scales: dict[str, str],
) -> Figure:
    """One panel per map, each with the examples of two classes.

    Args:
        x: W first coordinates.
        y: H second coordinates.
        maps: Title → H × W values. A map whose title begins with "mean" shows a probability, from 0 to 1.
        inputs: N × 2.
        labels: N classes, 0 or 1.
        scales: Title → label of the colour bar.
    """
    for name, values in maps.items():
        if values.shape != (len(y), len(x)):
            raise ValueError(f"{name}: expected {len(y)} × {len(x)} values; got {values.shape}.")
    figure = style.new_figure(4.3 * len(maps), 4.1)
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, (name, values) in zip(panels, maps.items(), strict=True):
        image = plane(axes, x, y, values, probability=name.lower().startswith("mean"))
        points(axes, inputs, labels)
        style.describe(axes, name, "x₁", "x₂" if axes is panels[0] else "")
        style.colour_bar(axes, image, scales[name])
    return figure


def plane(axes: Axes, x: np.ndarray, y: np.ndarray, values: np.ndarray, *, probability: bool) -> AxesImage:
    """Draw the map; a probability gets a line at ½, the decision boundary."""
    extent = (float(x[0]), float(x[-1]), float(y[0]), float(y[-1]))
    limits = (0.0, 1.0) if probability else (0.0, float(values.max()) or 1.0)
    image = axes.imshow(
        values,
        origin="lower",
        extent=extent,
        aspect="equal",
        interpolation="bilinear",
        cmap=style.DIVERGING if probability else style.SEQUENTIAL,
        vmin=limits[0],
        vmax=limits[1],
    )
    if probability and values.min() < 0.5 < values.max():
        axes.contour(x, y, values, levels=[0.5], colors="black", linewidths=1)
    return image


def points(axes: Axes, inputs: np.ndarray, labels: np.ndarray) -> None:
    """Draw the examples, with one colour and one marker per class."""
    for label, (colour, mark) in enumerate(zip(CLASSES, _MARKS, strict=True)):
        own = inputs[labels == label]
        axes.scatter(own[:, 0], own[:, 1], s=16, c=colour, marker=mark, edgecolors="white", linewidths=0.6)
