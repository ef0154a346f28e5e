"""Tuning curves: errors and the log evidence as functions of a setting, alone or as the panels of Figs. 5 and 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

from dnn2gp.plots import style
from dnn2gp.plots.bands import Band

Means: TypeAlias = tuple[Sequence[float] | np.ndarray, Sequence[float] | np.ndarray]
"""Means and their standard errors."""

EVIDENCE, TEST = "#1d3d78", "#c44e52"
"""The colours of the log evidence and of the test error."""
_OTHERS = ("#8c8c8c", "#55a868", "#8172b2", "#ccb974")
# Up to this many settings have a marker and a tick each.
_MARKED = 15


def tuning_curves(
    settings: Sequence[float] | Sequence[str],
    evidence: Means,
    errors: Mapping[str, Means] | None = None,
    *,
    xlabel: str,
    log_x: bool = False,
    chosen: float | None = None,
    title: str = "",
    error_label: str = "squared error",
    evidence_label: str = "log evidence (nats)",
) -> Figure:
    """Errors on the left axis and the log evidence on the right, as in Figs. 5 and 6 of the paper.

    Args:
        settings: The values of the setting: numbers or names.
        evidence: The means over the repeats and their standard errors. A star marks the largest mean.
        errors: The same for each kind of error ("train", "test"). A star marks the smallest "test" error. Without
            errors, the evidence is on the left axis.
        xlabel: The name of the setting.
        log_x: Whether the setting has a logarithmic axis.
        chosen: A setting to mark with a vertical line: the one in use, which need not be the best.
        title: The title of the figure.
        error_label: The label of the errors.
        evidence_label: The label of the evidence.
    """
    figure = style.new_figure(6.4, 4.2)
    left = figure.add_subplot()
    drawn = draw_curves(left, settings, evidence, errors, log_x=log_x, chosen=chosen)
    style.describe(left, title, xlabel, error_label if errors else evidence_label)
    if drawn.right is not left:
        label_evidence(drawn.right, evidence_label)
    style.legend_of(figure, drawn.handles)
    return figure


@dataclass(frozen=True, eq=False)
class Drawn:
    """What was drawn in a panel: the axes of the evidence, and the entries of the legend by name."""

    right: Axes
    handles: dict[str, Any]


def draw_curves(
    left: Axes,
    settings: Sequence[float] | Sequence[str],
    evidence: Means,
    errors: Mapping[str, Means] | None = None,
    *,
    log_x: bool = False,
    chosen: float | None = None,
) -> Drawn:
    """The curves of one panel, without labels: errors on `left`, and the evidence on its twin if there are errors."""
    errors = {} if errors is None else errors
    named = any(isinstance(setting, str) for setting in settings)
    x = np.arange(len(settings), dtype=float) if named else np.asarray(settings, dtype=float)
    bands = {name: _means(band, len(x), name) for name, band in errors.items()}
    own = _means(evidence, len(x), "evidence")
    right = left.twinx() if bands else left
    handles: dict[str, Any] = {
        f"{name} error": _line(left, x, band, *_look(name, bands)) for name, band in bands.items()
    }
    handles["log evidence"] = _line(right, x, own, EVIDENCE, "-", "o")
    if chosen is not None:
        handles["in use"] = left.axvline(chosen, color="#555555", linewidth=1, linestyle=":")
    star = _star(right, x, own[0], int(np.nanargmax(own[0])), EVIDENCE)
    if "test" in bands and np.isfinite(bands["test"][0]).any():
        _star(left, x, bands["test"][0], int(np.nanargmin(bands["test"][0])), TEST)
    _axis(left, x, list(map(str, settings)) if named else None, log_x and not named)
    left.grid(axis="x", color="#eeeeee")
    left.set_axisbelow(True)
    return Drawn(right, {**handles, "best": star})


def label_evidence(right: Axes, label: str) -> None:
    """Label the axis of the evidence, in its colour."""
    right.set_ylabel(label, fontsize=style.LABEL, color=EVIDENCE)
    right.tick_params(labelsize=style.TICK, colors=EVIDENCE)


def _line(
    axes: Axes, x: np.ndarray, band: tuple[np.ndarray, np.ndarray], colour: str, dashes: str, marker: str
) -> ErrorbarContainer:
    """A line through the means, with standard errors as bars and as a band."""
    mean, stderr = band
    axes.fill_between(x, mean - stderr, mean + stderr, color=colour, alpha=0.15, linewidth=0)
    many = len(x) > _MARKED
    return axes.errorbar(
        x,
        mean,
        None if many else stderr,
        color=colour,
        linestyle=dashes,
        marker="" if many else marker,
        markersize=5,
        capsize=3,
        linewidth=1.6,
    )


def _look(name: str, bands: Mapping[str, object]) -> tuple[str, str, str]:
    if name == "test":
        return TEST, "-", "s"
    others = [other for other in bands if other != "test"]
    return _OTHERS[others.index(name) % len(_OTHERS)], "--", "^"


def _star(axes: Axes, x: np.ndarray, mean: np.ndarray, best: int, colour: str) -> Line2D:
    """A black star at the best mean, with an edge in the colour of the curve."""
    (star,) = axes.plot(
        x[best], mean[best], "*", color="black", markersize=16, markeredgecolor=colour, markeredgewidth=1.5, zorder=10
    )
    return star


def _axis(axes: Axes, x: np.ndarray, names: list[str] | None, log: bool) -> None:
    """Set one tick per setting if there are few."""
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator())
    if len(x) <= _MARKED:
        labels = [f"{value:g}" for value in x] if names is None else names
        axes.xaxis.set_major_locator(FixedLocator(list(x)))
        axes.set_xticks(list(x), labels)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())


def _means(given: Means, count: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard errors, NaN where training diverged."""
    mean, stderr = (np.asarray(part, dtype=float) for part in given)
    if mean.shape != (count,) or stderr.shape != (count,):
        raise ValueError(f"{name}: expected {count} means and standard errors; got {mean.shape} and {stderr.shape}.")
    if not np.isfinite(mean).any():
        raise ValueError(f"{name}: expected at least one finite mean; got none.")
    there = np.isfinite(mean)
    return np.where(there, mean, np.nan), np.where(there & np.isfinite(stderr), stderr, 0.0)


_WIDTH, _HEIGHT = 4.6, 3.8
# Colours and dashes of the fits, from the weakest prior to the strongest.
_FITS = (("#c44e52", "--"), ("#1d3d78", "-"), ("#55a868", ":"), ("#8172b2", "-."))


@dataclass(frozen=True, eq=False)
class Panel:
    """Errors and the log evidence along one setting; see `tuning_curves`."""

    settings: Sequence[float] | np.ndarray
    evidence: Means
    errors: Mapping[str, Means] = field(default_factory=dict)
    xlabel: str = ""
    title: str = ""
    log_x: bool = False


def tuning_panels(
    panels: Sequence[Panel], *, error_label: str = "mean squared error", evidence_label: str = "log evidence (nats)"
) -> Figure:
    """Fig. 6: errors on the left axis of each panel, the log evidence on the right, and stars at the best values."""
    if not panels:
        raise ValueError("expected at least one panel.")
    figure = style.new_figure(_WIDTH * len(panels), _HEIGHT)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    _panels(figure, list(axes), panels, error_label, evidence_label)
    return figure


def fits_and_panels(
    x: np.ndarray,
    fits: Sequence[Band],
    inputs: np.ndarray,
    targets: np.ndarray,
    panels: Sequence[Panel],
    *,
    error_label: str = "mean squared error",
    evidence_label: str = "log evidence (nats)",
) -> Figure:
    """Fig. 5: the data with some fits on the left, then the panels of `tuning_panels` with common axes.

    `fits` are the predictions of a few networks along `x`, drawn with bands of one standard deviation of y.
    """
    if not fits or not panels:
        raise ValueError(f"fits, panels: expected at least one fit and one panel; got {len(fits)} and {len(panels)}.")
    figure = style.new_figure(_WIDTH * (len(panels) + 1), _HEIGHT)
    axes = figure.subplots(1, len(panels) + 1, squeeze=False)[0]
    _fits(axes[0], x, fits, inputs, targets)
    drawn = _panels(figure, list(axes[1:]), panels, error_label, evidence_label)
    _same_range([own for own, panel in zip(axes[1:], panels, strict=True) if panel.errors])
    _same_range([own.right for own in drawn])
    return figure


def _same_range(axes: Sequence[Axes]) -> None:
    """Give all axes the same range, so that panels can be compared."""
    ends = [each.get_ylim() for each in axes]
    for each in axes:
        each.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))


def _panels(
    figure: Figure, axes: Sequence[Axes], panels: Sequence[Panel], error_label: str, evidence_label: str
) -> list[Drawn]:
    """All panels, with labels on the outer axes only, and one legend."""
    drawn: list[Drawn] = []
    for left, panel in zip(axes, panels, strict=True):
        own = draw_curves(
            left, [float(each) for each in panel.settings], panel.evidence, panel.errors, log_x=panel.log_x
        )
        first, last = not drawn, len(drawn) == len(panels) - 1
        style.describe(left, panel.title, panel.xlabel, (error_label if panel.errors else evidence_label) * first)
        if own.right is not left:
            label_evidence(own.right, evidence_label * last)
        drawn.append(own)
    style.legend_of(figure, max((own.handles for own in drawn), key=len))
    return drawn


def _fits(axes: Axes, x: np.ndarray, fits: Sequence[Band], inputs: np.ndarray, targets: np.ndarray) -> None:
    """Means as lines, bands as light fills with thin edges, and data as dots."""
    if len(fits) > len(_FITS):
        raise ValueError(f"fits: expected at most {len(_FITS)}; got {len(fits)}.")
    axes.plot(inputs, targets, "k.", markersize=4, label="data", zorder=3)
    for (colour, dashes), fit in zip(_FITS, fits, strict=False):
        low, high = fit.edges(x)
        axes.fill_between(x, low, high, color=colour, alpha=0.08, linewidth=0)
        for edge in (low, high):
            axes.plot(x, edge, color=colour, linewidth=0.7, linestyle=dashes)
        axes.plot(x, fit.mean, color=colour, linewidth=1.8, linestyle=dashes, label=fit.name, zorder=4)
    style.describe(axes, "Laplace: fits ± 1 standard deviation of y", "x", "y")
    axes.set_xlim(float(x[0]), float(x[-1]))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=style.TICK, frameon=True, edgecolor="none", loc="lower left")
