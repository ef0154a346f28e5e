"""The common style of all figures: fonts, colours, and the bars that mark the classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

DIVERGING = "RdBu_r"
"""For signed values, centred at 0: blue is negative, white is 0, red is positive."""
SEQUENTIAL = "magma"
"""For values ≥ 0 such as variances: dark is 0, bright is large."""
RIGHT, WRONG = "#4878a8", "#d62728"
"""Correct and wrong predictions, which also have different markers."""

DPI = 150
TITLE, LABEL, TICK = 12, 10, 9
_BAR = 0.035  # width of a class bar, as a share of its axes
_GAP = 0.012


@dataclass(frozen=True)
class Grouping:
    """The order of examples grouped by class, and where each class begins and ends."""

    order: np.ndarray
    classes: tuple[int, ...]
    edges: np.ndarray
    """The first row of each class, followed by the number of rows."""

    @staticmethod
    def of(labels: np.ndarray) -> Grouping:
        """Group by increasing label; examples of a class keep their order."""
        classes, counts = np.unique(labels, return_counts=True)
        order = np.argsort(labels, kind="stable")
        return Grouping(order, tuple(int(c) for c in classes), np.concatenate([[0], np.cumsum(counts)]))

    @property
    def centres(self) -> np.ndarray:
        """The middle row of each class."""
        return (self.edges[:-1] + self.edges[1:] - 1) / 2

    @property
    def positions(self) -> np.ndarray:
        """The position in `classes` of the class of each row, after sorting."""
        return np.repeat(np.arange(len(self.classes)), np.diff(self.edges))


def new_figure(width: float, height: float) -> Figure:
    """An empty figure with its own canvas; sizes are in inches."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def class_colours(count: int) -> ListedColormap:
    """tab10 for up to ten classes, tab20 for up to twenty, evenly spaced hues beyond."""
    if count <= 20:
        table = matplotlib.colormaps["tab10" if count <= 10 else "tab20"]
        return ListedColormap([table(i) for i in range(count)])
    return ListedColormap(matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, count)))


def class_bar(axes: Axes, groups: Grouping, side: str, names: tuple[str, ...] | None = None) -> Axes:
    """A bar along the axes (side "left" or "top") with the colour and the name of each class.

    `names` are the names of the classes 0, 1, …. Names that do not fit into the bars are written next to the left bar
    only.
    """
    colours = class_colours(len(groups.classes))
    vertical = side == "left"
    bounds = (-_BAR - _GAP, 0.0, _BAR, 1.0) if vertical else (0.0, 1.0 + _GAP, 1.0, _BAR)
    bar = axes.inset_axes(bounds)
    values = groups.positions[:, None] if vertical else groups.positions[None, :]
    norm = Normalize(-0.5, len(groups.classes) - 0.5)
    bar.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    bar.set_xticks([])
    bar.set_yticks([])
    bar.spines[:].set_visible(False)
    beside = names_beside(groups, names)
    if beside:
        for centre, label in zip(groups.centres, groups.classes, strict=True) if vertical else ():
            bar.text(-0.9, centre, beside[label], ha="right", va="center_baseline", fontsize=TICK)
        return bar
    for position, (centre, label) in enumerate(zip(groups.centres, groups.classes, strict=True)):
        x, y = (0, centre) if vertical else (centre, 0)
        name = str(label) if names is None else names[label]
        turned = 90 if vertical and len(name) > 2 else 0
        look = {"fontsize": TICK, "color": _readable_on(colours(position)), "weight": "bold", "rotation": turned}
        bar.text(x, y, name, ha="center", va="center" if turned else "center_baseline", **look)
    return bar


def names_beside(groups: Grouping, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names, if they are too long to fit into the bars."""
    return names if names and len(groups.classes) > 4 and max(map(len, names)) > 3 else ()


def room(beside: tuple[str, ...]) -> float:
    """The width, in points, of names next to a bar."""
    return 0.6 * TICK * max(map(len, beside), default=0)


def class_lines(axes: Axes, groups: Grouping, colour: str, *, both: bool) -> None:
    """Thin lines between the classes of the rows and, with `both`, of the columns."""
    for edge in groups.edges[1:-1]:
        axes.axhline(edge - 0.5, color=colour, linewidth=0.4)
        if both:
            axes.axvline(edge - 0.5, color=colour, linewidth=0.4)


def colour_bar(axes: Axes, image: ScalarMappable, label: str, extend: str = "neither") -> Colorbar:
    """The colour bar of an image, to its right."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    beside = axes.inset_axes((1.02, 0.0, 0.03, 1.0))  # as tall as the image, whatever its aspect ratio
    bar = figure.colorbar(image, cax=beside, extend=extend)
    bar.set_label(label, fontsize=LABEL)
    bar.ax.tick_params(labelsize=TICK)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return bar


def legend_below(axes: Axes, columns: int = 4, share: float = 0.13) -> None:
    """The legend of the axes, below them by a share of their height."""
    axes.legend(
        fontsize=TICK, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -share), ncols=columns, columnspacing=1.2
    )


def legend_of(figure: Figure, handles: Mapping[str, Any]) -> None:
    """One legend for the whole figure, below it; `handles` maps the names to what was drawn."""
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=TICK,
    )


def colour_limit(values: np.ndarray) -> float:
    """The end of a symmetric colour scale: the 99th percentile of |values|, or their maximum if that is 0, or 1."""
    sizes = np.abs(values.astype(np.float64))
    return float(np.percentile(sizes, 99)) or float(sizes.max()) or 1.0


def describe(
    axes: Axes,
    title: str,
    xlabel: str = "",
    ylabel: str = "",
    bars: tuple[str, ...] = (),
    beside: tuple[str, ...] = (),
) -> None:
    """Set the title and the labels, leaving room for class bars on the given sides and for names next to them."""
    axes.set_title(title, fontsize=TITLE, loc="left", pad=30 if "top" in bars else 6)
    axes.set_xlabel(xlabel, fontsize=LABEL)
    axes.set_ylabel(ylabel, fontsize=LABEL, labelpad=(28 if "left" in bars else 4) + room(beside))
    axes.tick_params(labelsize=TICK)


def _readable_on(colour: tuple[float, float, float, float]) -> str:
    """Black or white, whichever contrasts more with the colour."""
    red, green, blue, _ = colour
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.6 else "white"
