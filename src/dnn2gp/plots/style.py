"""One look for all pictures: fonts, colours of the classes, colour maps, and the bars that mark the classes."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

DIVERGING = "RdBu_r"
"""Signed values, centred at 0: blue below, white at 0, red above."""
SEQUENTIAL = "magma"
"""Values ≥ 0 such as variances: dark at 0, bright where large."""
RIGHT, WRONG = "#4878a8", "#d62728"
"""Correct and wrong predictions; they also differ in shape wherever they are drawn."""

DPI = 150
TITLE, LABEL, TICK = 12, 10, 9
_BAR = 0.035  # width of a class bar, as a share of the axes beside it
_GAP = 0.012


@dataclass(frozen=True)
class Grouping:
    """Examples in order of their class: which row goes where, and where each class begins and ends."""

    order: np.ndarray
    classes: tuple[int, ...]
    edges: np.ndarray
    """Row at which each class begins, and the number of rows at the end."""

    @staticmethod
    def of(labels: np.ndarray) -> Grouping:
        """Grouped by increasing label; examples of one class stay in the order in which they came."""
        classes, counts = np.unique(labels, return_counts=True)
        order = np.argsort(labels, kind="stable")
        return Grouping(order, tuple(int(c) for c in classes), np.concatenate([[0], np.cumsum(counts)]))

    @property
    def centres(self) -> np.ndarray:
        """The middle row of each class."""
        return (self.edges[:-1] + self.edges[1:] - 1) / 2

    @property
    def positions(self) -> np.ndarray:
        """For each row, after ordering, the position of its class among `classes`."""
        return np.repeat(np.arange(len(self.classes)), np.diff(self.edges))


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, with a canvas of its own."""
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
    """A bar beside the axes (side "left" or "top"), coloured and named by class; `names` are those of 0, 1, ….

    Names that would not fit into the bars are beside the left one alone.
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
    """The names, if they are too long to be written into the bars."""
    return names if names and len(groups.classes) > 4 and max(map(len, names)) > 3 else ()


def room(beside: tuple[str, ...]) -> float:
    """In points, what names beside a bar take."""
    return 0.6 * TICK * max(map(len, beside), default=0)


def class_lines(axes: Axes, groups: Grouping, colour: str, *, both: bool) -> None:
    """Thin lines between the classes: across the rows, and with `both` across the columns too."""
    for edge in groups.edges[1:-1]:
        axes.axhline(edge - 0.5, color=colour, linewidth=0.4)
        if both:
            axes.axvline(edge - 0.5, color=colour, linewidth=0.4)


def colour_bar(axes: Axes, image: ScalarMappable, label: str, extend: str = "neither") -> Colorbar:
    """The scale of an image, to its right."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    beside = axes.inset_axes((1.02, 0.0, 0.03, 1.0))  # as tall as the image, whatever its aspect
    bar = figure.colorbar(image, cax=beside, extend=extend)
    bar.set_label(label, fontsize=LABEL)
    bar.ax.tick_params(labelsize=TICK)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return bar


def legend_below(axes: Axes, columns: int = 4, share: float = 0.13) -> None:
    """What the lines are, below the axis by a share of its height, where it hides nothing."""
    axes.legend(
        fontsize=TICK, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -share), ncols=columns, columnspacing=1.2
    )


def describe(
    axes: Axes,
    title: str,
    xlabel: str = "",
    ylabel: str = "",
    bars: tuple[str, ...] = (),
    beside: tuple[str, ...] = (),
) -> None:
    """Title and axis labels in words, which make room for class bars on the given sides and for names beside them."""
    axes.set_title(title, fontsize=TITLE, loc="left", pad=30 if "top" in bars else 6)
    axes.set_xlabel(xlabel, fontsize=LABEL)
    axes.set_ylabel(ylabel, fontsize=LABEL, labelpad=(28 if "left" in bars else 4) + room(beside))
    axes.tick_params(labelsize=TICK)


def _readable_on(colour: tuple[float, float, float, float]) -> str:
    """Black or white, whichever stands out from the colour."""
    red, green, blue, _ = colour
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.6 else "white"
