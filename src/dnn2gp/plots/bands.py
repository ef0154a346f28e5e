"""Predictions along one input, as bands of one standard deviation (Fig. 3)."""

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
    """The mean of a prediction along x, and the standard deviation of y."""

    name: str
    mean: np.ndarray
    std: np.ndarray

    def edges(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean − std and mean + std, if there is one for each x."""
        if self.mean.shape != x.shape or self.std.shape != x.shape:
            raise ValueError(f"{self.name}: expected means and deviations of shape {x.shape}; got {self.mean.shape}.")
        return self.mean - self.std, self.mean + self.std


def band_panels(
    x: np.ndarray,
    panels: dict[str, list[Band]],
    inputs: np.ndarray,
    targets: np.ndarray,
    *,
    gap: tuple[float, float] | None = None,
    height: tuple[float, float] | None = None,
) -> Figure:
    """One column of panels per method: the predictions with the data above, their standard deviations below.

    Args:
        x: The inputs along which the bands are given.
        panels: Title → the bands of a column.
        inputs: The inputs of the data.
        targets: The targets of the data.
        gap: An interval without data, which is shaded.
        height: The range of y that is shown.
    """
    if not panels:
        raise ValueError("panels: expected at least one; got none.")
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
    low, high = band.edges(x)
    axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    for edge in (low, high):
        axes.plot(x, edge, color=colour, linewidth=1.4)
    axes.plot(x, band.mean, color=colour, linewidth=1, linestyle="--", label=f"{band.name} ± 1 std")
