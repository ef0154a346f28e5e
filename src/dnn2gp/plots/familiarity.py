"""A network that is sure of everything, and a GP that knows what it knows: examples of several sets, and two scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dnn2gp.plots import style

_NETWORK, _GP = "#7a7a7a", "#1d3d78"
_TILES = 6


@final
@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one kind, and what network and GP say about them."""

    name: str
    images: np.ndarray
    """N × H × W."""
    confidence: np.ndarray
    """The largest probability of the network."""
    predicted: np.ndarray
    """The class that the network names."""
    doubt: np.ndarray
    """The outlier score of the GP, in nats."""


def familiarity(sets: Sequence[ImageSet], threshold: float, title: str = "") -> Figure:
    """One row for each set: examples, how sure the network is, and how unfamiliar the GP finds them.

    Args:
        sets: The first is what the network was trained for.
        threshold: The doubt above which an image counts as unfamiliar.
        title: Replaces the usual title.
    """
    figure = style.new_figure(11.0, 1.95 * len(sets) + 0.7)
    grid = figure.add_gridspec(len(sets), _TILES + 2, width_ratios=[1] * _TILES + [2.6, 2.6])
    largest = max(float(own.doubt.max()) for own in sets) or 1.0
    for row, own in enumerate(sets):
        for column, place in enumerate(_typical(own.doubt)):
            _tile(figure.add_subplot(grid[row, column]), own, place, threshold, first=column == 0)
        last = row == len(sets) - 1
        sure = figure.add_subplot(grid[row, _TILES])
        share = float((own.confidence > 0.9).mean())
        sure.hist(own.confidence, np.linspace(0, 1, 21).tolist(), color=_NETWORK, weights=_shares(own.confidence))
        _panel(sure, "network: probability of its answer" if last else "", f"{share:.0%} above 0.9")
        unknown = figure.add_subplot(grid[row, _TILES + 1])
        unknown.hist(own.doubt, np.linspace(0, largest, 25).tolist(), color=_GP, weights=_shares(own.doubt))
        unknown.axvline(threshold, color=style.WRONG, linestyle="--", linewidth=1.2)
        share = float((own.doubt > threshold).mean())
        _panel(unknown, "GP: outlier score (nats)" if last else "", f"{share:.0%} unfamiliar")
    usual = "The network is sure even of what it has never seen; the GP finds it unfamiliar"
    figure.suptitle(title or usual, fontsize=style.TITLE)
    return figure


def _typical(doubt: np.ndarray) -> list[int]:
    """The images with the median doubt of each sixth, so that the row shows what the histogram does."""
    places = (np.arange(_TILES) + 0.5) / _TILES * len(doubt)
    return np.argsort(doubt, kind="stable")[places.astype(int)].tolist()


def _tile(axes: Axes, own: ImageSet, place: int, threshold: float, *, first: bool) -> None:
    """One image with the answer of the network above and the verdict of the GP below."""
    unknown = bool(own.doubt[place] > threshold)
    axes.imshow(own.images[place], cmap="gray_r", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(f"{own.predicted[place]}: {own.confidence[place]:.0%}", fontsize=style.TICK, color=_NETWORK)
    colour = style.WRONG if unknown else _GP
    axes.set_xlabel("unfamiliar" if unknown else "familiar", fontsize=style.TICK, color=colour)
    for side in axes.spines.values():
        side.set_color(colour)
        side.set_linewidth(2)
    if first:
        axes.set_ylabel(own.name, fontsize=style.LABEL)


def _panel(axes: Axes, label: str, words: str) -> None:
    axes.set_yticks([])
    axes.tick_params(labelsize=style.TICK)
    axes.set_title(words, fontsize=style.LABEL)
    axes.set_xlabel(label, fontsize=style.LABEL)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _shares(values: np.ndarray) -> np.ndarray:
    return np.full(len(values), 1 / len(values))
