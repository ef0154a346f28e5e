"""Predictions along one input, as bands of one standard deviation beside each other (Fig. 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from dnn2gp.plots import style

_COLOURS = ("#c44e52", "#4c72b0", "#55a868", "#8172b2")


@dataclass(frozen=True, eq=False)
class Band:
    """A mean along x, and the standard deviation of y."""

    name: str
    mean: np.ndarray
    std: np.ndarray


def band_panels(
    x: np.ndarray,
    panels: dict[str, list[Band]],
    inputs: np.ndarray,
    targets: np.ndarray,
    *,
    gap: tuple[float, float] | None = None,
    height: tuple[float, float] | None = None,
) -> Figure:
    """One column a method: bands as two lines and a light fill, means dashed, data as dots; below, their deviations.

    gap     an interval without data, which is shaded
    height  the range of y; what is beyond it is cut off
    """
    if not panels:
        raise ValueError("expected at least one panel.")
    figure = style.new_figure(6.6 * len(panels), 7.0)
    drawn, below = figure.subplots(2, len(panels), sharex=True, sharey="row", squeeze=False, height_ratios=[5, 3])
    for axes, lower, (title, bands) in zip(drawn, below, panels.items(), strict=True):
        for each in (axes, lower):
            if gap is not None:
                each.axvspan(*gap, color="#f0f0f0", zorder=0)
        for colour, band in zip(_COLOURS, bands, strict=False):
            _draw(axes, x, band, colour)
            lower.semilogy(x, band.std, color=colour, linewidth=1.6, label=band.name)
        axes.plot(inputs, targets, "k.", markersize=3.5, label="data")
        style.describe(axes, f"{title}: mean ± 1 standard deviation of y", "", "y" if axes is drawn[0] else "")
        style.describe(lower, "", "x", "standard deviation of y" if axes is drawn[0] else "")
        axes.set_xlim(float(x[0]), float(x[-1]))
        if height is not None:
            axes.set_ylim(*height)
        for each in (axes, lower):
            each.spines[["top", "right"]].set_visible(False)
        style.legend_below(lower, share=0.22)
        lower.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        lower.yaxis.set_major_formatter("{x:g}")
        lower.yaxis.set_minor_formatter(NullFormatter())
    return figure


def _draw(axes: Axes, x: np.ndarray, band: Band, colour: str) -> None:
    if band.mean.shape != x.shape or band.std.shape != x.shape:
        raise ValueError(f"{band.name}: expected {x.shape} means and deviations, got {band.mean.shape}.")
    low, high = band.mean - band.std, band.mean + band.std
    axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    for edge in (low, high):
        axes.plot(x, edge, color=colour, linewidth=1.4)
    axes.plot(x, band.mean, color=colour, linewidth=1, linestyle="--", label=f"{band.name} ± 1 std")
