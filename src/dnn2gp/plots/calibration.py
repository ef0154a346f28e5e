"""Calibration: coverage of intervals, and reliability of class probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dnn2gp.plots import style

_LINE, _BAND, _BARS = "#1d3d78", "#dddddd", "#7f9fd0"
# A frequency lies within this many standard deviations of its probability in 95 of 100 cases.
_RANGE = 1.96
_CHANCE = "95 % range of a perfect model"


def coverage(
    levels: Sequence[float] | np.ndarray,
    observed: Sequence[float] | np.ndarray,
    count: int,
    *,
    pit: np.ndarray | None = None,
    title: str = "",
) -> Figure:
    """The share of `count` targets inside central intervals, as a function of the level of the intervals.

    Args:
        levels: Nominal levels, between 0 and 1.
        observed: The share of the targets inside the interval of each level.
        count: The number of targets.
        pit: F(y), the predicted distribution function at each target. Its histogram is flat for a perfect model.
        title: Replaces the usual title.
    """
    nominal, found = _shares(levels, "levels"), _shares(observed, "observed")
    if nominal.shape != found.shape or count < 1:
        raise ValueError(
            f"shares, count: expected as many shares as levels, and at least 1 target; got {found.shape} and {count}."
        )
    figure = style.new_figure(5.0 if pit is None else 9.4, 4.4)
    panels = figure.subplots(1, 1 if pit is None else 2, squeeze=False)[0]
    axes = panels[0]
    grid = np.linspace(0, 1, 101)
    spread = _RANGE * np.sqrt(grid * (1 - grid) / count)
    low, high = np.clip(grid - spread, 0, 1), np.clip(grid + spread, 0, 1)
    axes.fill_between(grid, low, high, color=_BAND, linewidth=0, label=_CHANCE)
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":", label="perfect")
    axes.plot(nominal, found, color=_LINE, marker="o", markersize=4, label="observed")
    axes.text(0.97, 0.05, "below the line: intervals too narrow", ha="right", fontsize=style.TICK, color="#555555")
    axes.text(0.03, 0.92, "above the line: too wide", ha="left", fontsize=style.TICK, color="#555555")
    _square(axes)
    style.describe(
        axes, title or f"Coverage of intervals ({count:,} targets)", "level of the interval", "share of targets inside"
    )
    _legend(figure, axes)
    if pit is not None:
        _pit(panels[1], _shares(pit, "pit"))
    return figure


def reliability(
    confidence: np.ndarray, correct: np.ndarray, *, ece: float | None = None, num_bins: int = 10, title: str = ""
) -> Figure:
    """The share of correct predictions as a function of their confidence, in bins of the confidence.

    Args:
        confidence: The probability of the predicted class, for N predictions.
        correct: Whether each prediction is correct.
        ece: The expected calibration error, shown in the title.
        num_bins: The number of bins.
        title: Replaces the usual title.
    """
    given, right = _shares(confidence, "confidence"), np.asarray(correct, dtype=float)
    if given.shape != right.shape or not len(given):
        raise ValueError(f"correct: expected one value per confidence; got {right.shape} and {given.shape}.")
    edges = np.linspace(0, 1, num_bins + 1)
    bins = np.clip(np.searchsorted(edges, given, side="left") - 1, 0, num_bins - 1)
    filled = np.unique(bins)
    means = np.array([given[bins == own].mean() for own in filled])
    shares = np.array([right[bins == own].mean() for own in filled])
    counts = np.bincount(bins, minlength=num_bins)
    figure = style.new_figure(5.0, 5.4)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    errors = _RANGE * np.sqrt(means * (1 - means) / counts[filled])
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":", label="perfect")
    low, high = np.clip(means - errors, 0, 1), np.clip(means + errors, 0, 1)
    axes.vlines(means, low, high, color=_BAND, linewidth=9, label=_CHANCE)
    axes.plot(means, shares, color=_LINE, marker="o", markersize=6, linewidth=1, label="observed")
    known = "" if ece is None else f" (ECE {ece:.3f})"
    style.describe(axes, (title or "Reliability") + known, "", "share of correct predictions")
    axes.set_ylim(0, 1.03)
    axes.text(0.97, 0.05, "below the line: overconfident", ha="right", fontsize=style.TICK, color="#555555")
    axes.text(0.03, 0.88, "above the line: underconfident", ha="left", fontsize=style.TICK, color="#555555")
    _legend(figure, axes)
    below.bar(edges[:-1], counts, width=1 / num_bins, align="edge", color=_BARS, edgecolor="white")
    below.set_xlim(0, 1)
    style.describe(below, "", "probability of the predicted class", "rows")
    return figure


def _pit(axes: Axes, pit: np.ndarray) -> None:
    """The histogram of F(y), with the 95 % range of each bar for a perfect model."""
    count = len(pit)
    bins = int(np.clip(count // 8, 4, 10))
    heights, edges = np.histogram(pit, bins, range=(0, 1))
    mean, spread = count / bins, _RANGE * np.sqrt(count / bins * (1 - 1 / bins))
    axes.bar(edges[:-1], heights, width=1 / bins, align="edge", color=_BARS, edgecolor="white")
    axes.axhspan(max(0.0, mean - spread), mean + spread, color=_BAND, zorder=0, linewidth=0)
    axes.axhline(mean, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, max(heights.max(), mean + spread) * 1.12)
    style.describe(axes, "Position of the targets: flat is good", "predicted probability of smaller values", "targets")


def _legend(figure: Figure, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    style.legend_of(figure, dict(zip(names, handles, strict=True)))


def _square(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")


def _shares(values: Sequence[float] | np.ndarray, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not np.isfinite(array).all() or (array < 0).any() or (array > 1).any():
        raise ValueError(f"{name}: expected numbers between 0 and 1; got an array of shape {array.shape}.")
    return array
