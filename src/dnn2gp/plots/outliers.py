"""Which score tells examples of another kind from those that a network knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dnn2gp.plots import style

KNOWN, OTHER = "#4878a8", "#dd8452"
_COLOURS = ("#c44e52", "#8172b2", "#8c8c8c", "#222222")
_DASHES = ("-", "-", "--", ":")
_BINS = 60


@dataclass(frozen=True, eq=False)
class Roc:
    """How well a score tells two kinds apart: the shares that lie above each threshold, and the area below."""

    name: str
    known: np.ndarray
    """Of the known kind: false alarms."""
    other: np.ndarray
    """Of the other kind: what is found."""
    area: float


def outliers(
    values: np.ndarray, outside: np.ndarray, curves: Sequence[Roc], names: tuple[str, str], xlabel: str, title: str
) -> Figure:
    """Left one score of both kinds as histograms, right the ROC curves of several.

    values   the score, one number ≥ 0 an example
    outside  1 for the examples of the other kind, 0 for the others
    names    of the known kind, and of the other one
    """
    if values.shape != outside.shape or not np.isfinite(values).all():
        raise ValueError(f"expected a finite score for each of {len(outside)} examples, got shape {values.shape}.")
    if len(curves) > len(_COLOURS):
        raise ValueError(f"expected at most {len(_COLOURS)} curves, got {len(curves)}.")
    figure = style.new_figure(11.0, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1.0])
    _histograms(left, values, outside.astype(bool), names)
    style.describe(left, title, xlabel, "share of the images")
    for curve, colour, dash in zip(curves, _COLOURS, _DASHES, strict=False):
        label = f"{curve.area:.3f}  {curve.name}"
        right.plot(curve.known, curve.other, color=colour, linestyle=dash, linewidth=1.8, label=label)
    right.plot([0, 1], [0, 1], color="#cccccc", linewidth=0.8)
    right.legend(title="area under the curve", fontsize=style.TICK, title_fontsize=style.TICK, loc="center")
    style.describe(
        right, "Who is told apart", f"share of {names[0]} taken for {names[1]}", f"share of {names[1]} found"
    )
    right.spines[["top", "right"]].set_visible(False)
    return figure


def _histograms(axes: Axes, values: np.ndarray, outside: np.ndarray, names: tuple[str, str]) -> None:
    """On a logarithmic axis, each kind summing to 1."""
    logs = np.log10(np.maximum(values, max(float(values.max()), 1e-300) * 1e-12))
    edges = np.linspace(logs.min(), logs.max() + 1e-9, _BINS)
    for own, name, colour in ((~outside, names[0], KNOWN), (outside, names[1], OTHER)):
        share = np.full(int(own.sum()), 1 / max(1, int(own.sum())))
        axes.hist(10 ** logs[own], 10**edges, weights=share, color=colour, alpha=0.6, label=name)
    axes.set_xscale("log")
    axes.legend(fontsize=style.TICK, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
