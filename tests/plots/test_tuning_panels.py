"""Tuning curves side by side: what is drawn is what was handed in, stars where each is best."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from dnn2gp.plots.bands import Band
from dnn2gp.plots.tuning import Panel, fits_and_panels, tuning_panels

X = np.logspace(-2, 2, 21)
EVIDENCE = (-((np.log(X) - 0.5) ** 2), np.full(21, 0.2))
ERRORS = {"train": (X / 100, np.full(21, 0.01)), "test": ((np.log(X) + 1) ** 2 + 1, np.full(21, 0.1))}
WIDTHS = Panel(np.array([1, 2, 3]), ([1.0, 3.0, 2.0], [0.0] * 3), xlabel="width")
PANELS = [Panel(X, EVIDENCE, ERRORS, "δ", "one", log_x=True), WIDTHS]


def stars(axes: Axes) -> list[float]:
    black = (line for line in axes.get_lines() if line.get_marker() == "*" and to_rgb(line.get_color()) == (0, 0, 0))
    return [float(line.get_xdata()[0]) for line in black]


def test_panels_and_their_stars() -> None:
    figure = tuning_panels(PANELS)
    first, second, twin = figure.axes
    assert stars(first) == [X[np.abs(np.log(X) + 1).argmin()]]
    assert stars(twin) == [X[np.abs(np.log(X) - 0.5).argmin()]]
    assert stars(second) == [2.0]
    assert (first.get_xscale(), second.get_xscale()) == ("log", "linear")
    assert (first.get_title(loc="left"), first.get_xlabel(), first.get_ylabel()) == ("one", "δ", "mean squared error")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["train error", "test error", "log evidence", "best"]


def test_fits_at_the_left() -> None:
    x = np.linspace(-4, 4, 9)
    fits = [Band("δ = 1", np.sin(x), np.ones(9)), Band("δ = 9", 0 * x, np.full(9, 0.5))]
    figure = fits_and_panels(x, fits, np.array([0.0, 1.0]), np.array([0.5, 1.5]), PANELS[:1])
    left = figure.axes[0]
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in left.get_lines()}
    np.testing.assert_array_equal(lines["data"], [0.5, 1.5])
    np.testing.assert_array_equal(lines["δ = 1"], np.sin(x))
    edges = [np.asarray(line.get_ydata()) for line in left.get_lines() if str(line.get_label()).startswith("_")]
    assert any(np.array_equal(edge, np.full(9, 0.5)) for edge in edges)
    assert any(np.array_equal(edge, np.sin(x) - 1) for edge in edges)
    assert len(figure.axes) == 3


def test_panels_beside_fits_have_the_same_axes() -> None:
    larger = Panel(X, (EVIDENCE[0] - 7.0, EVIDENCE[1]), {"test": (5 + X, 0 * X)}, "δ", "two", log_x=True)
    fits = [Band("δ = 1", np.zeros(2), np.ones(2))]
    figure = fits_and_panels(np.arange(2.0), fits, np.zeros(1), np.zeros(1), [PANELS[0], larger, WIDTHS])
    _, first, second, widths, right, other = figure.axes
    assert first.get_ylim() == second.get_ylim() != widths.get_ylim()
    assert right.get_ylim() == other.get_ylim() == widths.get_ylim()
    assert first.get_ylim()[0] < min(ERRORS["train"][0])
    assert first.get_ylim()[1] > max(5 + X)


def test_what_cannot_be_drawn_is_refused() -> None:
    x = np.linspace(0, 1, 4)
    with pytest.raises(ValueError, match="at least one panel"):
        tuning_panels([])
    with pytest.raises(ValueError, match="one fit and one panel"):
        fits_and_panels(x, [], x, x, PANELS)
    with pytest.raises(ValueError, match="means and deviations"):
        fits_and_panels(x, [Band("a", x[:2], x)], x, x, PANELS)
    with pytest.raises(ValueError, match="fits: expected at most 4"):
        fits_and_panels(x, [Band("a", x, x)] * 5, x, x, PANELS)
