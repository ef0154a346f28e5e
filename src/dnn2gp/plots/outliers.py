"""Out-of-distribution detection: how well scores separate unknown examples from known ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dnn2gp.plots import style

KNOWN, OTHER = "#4878a8", "#dd8452"
_COLOURS = ("#c44e52", "#4c9f70", "#8172b2", "#ccb974", "#8c8c8c", "#222222")
_DASHES = ("-", "-", "-", "-", "--", ":")
_BINS = 60


@dataclass(frozen=True, eq=False)
class Roc:
    """The ROC curve of a score: the shares of both kinds above each threshold, and the area under the curve."""

    name: str
    known: np.ndarray
    """False positive rate: the share of known examples above each threshold."""
    other: np.ndarray
    """True positive rate: the share of other examples above each threshold."""
    area: float


def outliers(
    values: np.ndarray, outside: np.ndarray, curves: Sequence[Roc], names: tuple[str, str], xlabel: str, title: str
) -> Figure:
    """Left: histograms of one score for both kinds of examples. Right: the ROC curves of several scores.

    Args:
        values: The score, one number ≥ 0 per example.
        outside: 1 for examples of the other kind, 0 for known examples.
        curves: The ROC curves.
        names: The names of the known and of the other kind.
        xlabel: The name of the score.
        title: The title of the histograms.
    """
    if values.shape != outside.shape or not np.isfinite(values).all():
        raise ValueError(
            f"values: expected a finite score for each of {len(outside)} examples; got shape {values.shape}."
        )
    if len(curves) > len(_COLOURS):
        raise ValueError(f"curves: expected at most {len(_COLOURS)}; got {len(curves)}.")
    figure = style.new_figure(11.0, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1.0])
    _histograms(left, values, outside.astype(bool), names)
    style.describe(left, title, xlabel, "share of the images")
    for curve, colour, dash in zip(curves, _COLOURS, _DASHES, strict=False):
        label = f"{curve.area:.3f}  {curve.name}"
        right.plot(curve.known, curve.other, color=colour, linestyle=dash, linewidth=1.8, label=label)
    right.plot([0, 1], [0, 1], color="#cccccc", linewidth=0.8)
    right.legend(title="area under the curve", fontsize=style.TICK, title_fontsize=style.TICK, loc="center")
    style.describe(right, "ROC curves", f"share of {names[0]} mistaken for {names[1]}", f"share of {names[1]} detected")
    right.spines[["top", "right"]].set_visible(False)
    return figure


def _histograms(axes: Axes, values: np.ndarray, outside: np.ndarray, names: tuple[str, str]) -> None:
    """Histograms on a logarithmic axis, each summing to 1."""
    logs = np.log10(np.maximum(values, max(float(values.max()), 1e-300) * 1e-12))
    edges = np.linspace(logs.min(), logs.max() + 1e-9, _BINS)
    for own, name, colour in ((~outside, names[0], KNOWN), (outside, names[1], OTHER)):
        share = np.full(int(own.sum()), 1 / max(1, int(own.sum())))
        axes.hist(10 ** logs[own], 10**edges, weights=share, color=colour, alpha=0.6, label=name)
    axes.set_xscale("log")
    axes.legend(fontsize=style.TICK, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
