"""Networks of increasing width compared with the Gaussian process of an infinitely wide network."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from dnn2gp.plots import style

_COLOURS = {"all weights": "#c44e52", "last layer": "#4c72b0"}


def widths(
    counts: np.ndarray,
    errors: dict[str, np.ndarray],
    x: np.ndarray,
    means: np.ndarray,
    stds: np.ndarray,
    limit: tuple[np.ndarray, np.ndarray],
    data: tuple[np.ndarray, np.ndarray],
) -> Figure:
    """Left: the distance of the kernels from their limits. Right: the GPs of up to three widths.

    Args:
        counts: W widths.
        errors: Name of a kernel → its relative distances, W × repeats.
        x: The inputs along which the GPs are given.
        means: W × repeats × len(x); the first repeat is drawn.
        stds: The same for standard deviations.
        limit: Mean and standard deviation of the infinitely wide network.
        data: Inputs and targets.
    """
    shown = sorted({0, len(counts) // 2, len(counts) - 1})
    figure = style.new_figure(3.9 + 3.1 * len(shown), 4.3)
    panels = figure.subplots(1, 1 + len(shown), width_ratios=[1.25, *(1 for _ in shown)])
    low, high = float(np.min(limit[0] - 2.6 * limit[1])), float(np.max(limit[0] + 2.6 * limit[1]))
    _errors(panels[0], counts, errors)
    for axes, place in zip(panels[1:], shown, strict=True):
        _band(axes, x, *limit, "#222222", "infinite width", 0.1)
        _band(axes, x, means[place, 0], stds[place, 0], "#c44e52", f"{counts[place]:,} units", 0.2)
        axes.plot(*data, "k.", markersize=5)
        style.legend_below(axes, 1)
        axes.set_ylim(low, high)
        style.describe(axes, f"GP of a network with {counts[place]:,} units", "x", "f" if place == 0 else "")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _errors(axes: Axes, counts: np.ndarray, errors: dict[str, np.ndarray]) -> None:
    for name, values in errors.items():
        colour = _COLOURS.get(name, "#555555")
        axes.plot(counts, values, ".", color=colour, alpha=0.35, markersize=5)
        axes.plot(counts, values.mean(1), "-o", color=colour, markersize=5, label=name)
    first = max(values.mean(1)[0] for values in errors.values())
    axes.plot(counts, 1.3 * first * np.sqrt(counts[0] / counts), "--", color="#888888", label="∝ 1/√width")
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize=style.TICK, frameon=False, title="kernel of", title_fontsize=style.TICK)
    style.describe(axes, "Convergence to infinite width", "hidden units", "‖κ − κ∞‖ / ‖κ∞‖")
    axes.spines[["top", "right"]].set_visible(False)


def _band(axes: Axes, x: np.ndarray, mean: np.ndarray, std: np.ndarray, colour: str, name: str, alpha: float) -> None:
    axes.fill_between(x, mean - 2 * std, mean + 2 * std, color=colour, alpha=alpha, linewidth=0)
    axes.plot(x, mean, color=colour, linewidth=1.5, label=f"{name} ± 2 std")
