"""Several tuning curves as panels of one figure, in the layout of Figs. 5 and 6 of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dnn2gp.plots import style
from dnn2gp.plots.bands import Band
from dnn2gp.plots.tuning import Drawn, Means, draw_curves, label_evidence

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
        raise ValueError(f"expected at least one fit and one panel; got {len(fits)} and {len(panels)}.")
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
