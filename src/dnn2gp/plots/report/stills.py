"""Maps as static pictures: shown until the script has drawn them, without JavaScript, and in print."""

from __future__ import annotations

from io import BytesIO
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize

from dnn2gp.plots import style
from dnn2gp.plots.report.section import InteractiveMap
from dnn2gp.plots.style import Grouping

STILL_DPI = 110
_NAMED = 20  # up to this many classes or columns are named
_LINE = 60  # letters per line of the label of the colour bar


def still(shown: InteractiveMap) -> bytes:
    """The PNG of a map with its rows grouped by class."""
    groups = Grouping.of(shown.examples.labels)
    values = shown.values[groups.order]
    if shown.is_kernel:
        values = values[:, groups.order]
    figure = style.new_figure(6.2, 5.2) if shown.is_kernel else style.new_figure(4.6, 5.2)
    axes = figure.add_subplot()
    end = style.colour_limit(values)
    image = axes.imshow(
        values,
        cmap=style.DIVERGING,
        norm=Normalize(-end, end),
        interpolation="nearest",
        aspect="equal" if shown.is_kernel else "auto",
    )
    _bar(axes, shown, groups, "left")
    if shown.is_kernel:
        _bar(axes, shown, groups, "top")
    style.colour_bar(axes, image, fill(_literal(shown.scale), _LINE))
    axes.spines[:].set_visible(False)
    _name_columns(axes, shown)
    _name_rows(axes, shown, groups)
    written = BytesIO()
    figure.savefig(written, format="png", dpi=STILL_DPI)
    return written.getvalue()


def _bar(axes: Axes, shown: InteractiveMap, groups: Grouping, side: str) -> None:
    """A bar with the colour of the class of each row or column."""
    labels = shown.examples.labels[groups.order]
    vertical = side == "left"
    bar = axes.inset_axes((-0.045, 0.0, 0.033, 1.0) if vertical else (0.0, 1.012, 1.0, 0.033))
    table: ListedColormap = style.class_colours(len(shown.examples.classes))
    norm = Normalize(-0.5, len(shown.examples.classes) - 0.5)
    bar.imshow(labels[:, None] if vertical else labels[None, :], cmap=table, norm=norm, aspect="auto")
    bar.set_xticks([])
    bar.set_yticks([])
    bar.spines[:].set_visible(False)


def _name_columns(axes: Axes, shown: InteractiveMap) -> None:
    axes.set_xticks([])
    if shown.columns is None or len(shown.columns) > _NAMED:
        return
    names = [_literal(name) for name in shown.columns]
    steep = sum(map(len, names)) > 40
    axes.set_xticks(np.arange(len(names)), names, fontsize=style.TICK, rotation=60 if steep else 0)


def _name_rows(axes: Axes, shown: InteractiveMap, groups: Grouping) -> None:
    """The names of the classes to the left of their bar."""
    axes.set_yticks([])
    if len(groups.classes) <= _NAMED:
        names = [_literal(shown.examples.classes[label]) for label in groups.classes]
        axes.set_yticks(groups.centres, names, fontsize=style.TICK)
        axes.tick_params(axis="y", length=0, pad=20 if shown.is_kernel else 14)


def _literal(text: str) -> str:
    """Escape dollar signs, which matplotlib takes for formulas."""
    return text.replace("$", r"\$")
