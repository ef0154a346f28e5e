"""Pictures of tuning and calibration: what is drawn is what was handed in."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from dnn2gp.plots import coverage, reliability, tuning_curves
from dnn2gp.plots.tuning import EVIDENCE, TEST

WIDTHS = [2.0, 5.0, 10.0, 50.0]
EVIDENCES = ([-420.0, -400.0, -390.0, -405.0], [3.0, 2.0, 4.0, 0.0])
TRAIN, HELD = ([6.0, 5.5, 5.2, 4.0], [0.1] * 4), ([6.5, 5.0, 5.4, 6.0], [0.2] * 4)


def drawn(axes: Axes, colour: str) -> np.ndarray:
    """The points of the line of this colour that joins the means."""
    (line,) = [
        line for line in axes.get_lines() if to_rgb(line.get_color()) == to_rgb(colour) and len(line.get_xdata()) > 2
        and line.get_linestyle() != "None"
    ]  # fmt: skip
    return np.array([line.get_xdata(), line.get_ydata()])


def stars(axes: Axes) -> list[tuple[float, float]]:
    return [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in axes.get_lines()
        if line.get_marker() == "*" and to_rgb(line.get_color()) == (0, 0, 0)
    ]


def labels(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_curves_and_stars() -> None:
    figure = tuning_curves(
        WIDTHS,
        EVIDENCES,
        {"train": TRAIN, "test": HELD},
        xlabel="width",
        log_x=True,
        title="Widths",
        error_label="error",
    )
    left, right = figure.axes
    np.testing.assert_array_equal(drawn(right, EVIDENCE), [WIDTHS, EVIDENCES[0]])
    np.testing.assert_array_equal(drawn(left, TEST), [WIDTHS, HELD[0]])
    assert stars(right) == [(10.0, -390.0)]  # the largest evidence
    assert stars(left) == [(5.0, 5.0)]  # the smallest test error, whatever the training error is
    assert left.get_xscale() == "log"
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["2", "5", "10", "50"]
    assert (left.get_xlabel(), left.get_ylabel(), right.get_ylabel()) == ("width", "error", "log evidence (nats)")
    assert left.get_title(loc="left") == "Widths"
    assert labels(figure) == ["train error", "test error", "log evidence", "best"]


def test_standard_errors_are_drawn() -> None:
    figure = tuning_curves(WIDTHS, EVIDENCES, {"test": HELD}, xlabel="width")
    for axes, (mean, stderr) in zip(figure.axes, (HELD, EVIDENCES), strict=True):
        (bars,) = [segments for segments in axes.collections if len(segments.get_paths()) == len(WIDTHS)]
        spans = np.array([path.vertices[:, 1] for path in bars.get_paths()])
        np.testing.assert_allclose(spans, np.stack([np.subtract(mean, stderr), np.add(mean, stderr)], 1))


def test_without_errors_the_evidence_has_the_left_axis() -> None:
    x = np.logspace(-1, 1, 31)
    figure = tuning_curves(x.tolist(), (-((np.log(x) - 0.2) ** 2), np.zeros(31)), xlabel="δ", log_x=True, chosen=2.5)
    (axes,) = figure.axes
    assert labels(figure) == ["log evidence", "in use", "best"]
    assert [2.5, 2.5] in [list(line.get_xdata()) for line in axes.get_lines()]
    assert axes.get_ylabel() == "log evidence (nats)"
    assert stars(axes)[0][0] == x[np.abs(np.log(x) - 0.2).argmin()]


def test_settings_may_be_names() -> None:
    figure = tuning_curves(["relu", "tanh"], ([-2.0, -1.0], [0.1, 0.1]), {"train": ([1.0, 2.0], [0.0, 0.0])}, xlabel="")
    left, right = figure.axes
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["relu", "tanh"]
    assert stars(right) == [(1.0, -1.0)]
    assert stars(left) == []


def test_a_setting_that_diverged_is_left_out() -> None:
    figure = tuning_curves(WIDTHS, ([-np.inf, -2.0, -1.0, np.nan], [np.nan] * 4), xlabel="width")
    np.testing.assert_array_equal(drawn(figure.axes[0], EVIDENCE)[1], [np.nan, -2.0, -1.0, np.nan])
    assert stars(figure.axes[0]) == [(10.0, -1.0)]


def test_coverage() -> None:
    pit = np.linspace(0.01, 0.99, 40)
    figure = coverage([0.5, 0.9], [0.4, 0.85], 40, pit=pit)
    left, right = figure.axes
    (line,) = [line for line in left.get_lines() if line.get_label() == "observed"]
    np.testing.assert_array_equal(line.get_xydata(), [[0.5, 0.4], [0.9, 0.85]])
    heights = [bar.get_height() for bar in right.patches if bar.get_height() > 1][:5]
    assert heights == [8.0] * 5
    (band,) = left.collections
    vertices = band.get_paths()[0].vertices
    half = vertices[np.isclose(vertices[:, 0], 0.5), 1]
    np.testing.assert_allclose([half.min(), half.max()], 0.5 + np.array([-1, 1]) * 1.96 * np.sqrt(0.25 / 40))
    assert len(coverage([0.5], [0.5], 3).axes) == 1


def test_reliability() -> None:
    confidence = np.array([0.55, 0.58, 0.6, 0.95, 0.97, 1.0])
    correct = np.array([True, False, True, True, True, False])
    figure = reliability(confidence, correct, ece=0.25)
    above, below = figure.axes
    (line,) = [line for line in above.get_lines() if line.get_label() == "observed"]
    expected = [[np.mean(confidence[:3]), 2 / 3], [np.mean(confidence[3:]), 2 / 3]]
    np.testing.assert_allclose(line.get_xydata(), expected)
    assert [bar.get_height() for bar in below.patches] == [0, 0, 0, 0, 0, 3, 0, 0, 0, 3]
    assert "ECE 0.250" in above.get_title(loc="left")


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 4 means"):
        tuning_curves(WIDTHS, ([1.0], [1.0]), xlabel="")
    with pytest.raises(ValueError, match="evidence: expected at least one"):
        tuning_curves([1.0, 2.0], ([np.nan, -np.inf], [0.0, 0.0]), xlabel="")
    with pytest.raises(ValueError, match="between 0 and 1"):
        coverage([0.5], [1.5], 3)
    with pytest.raises(ValueError, match="as many shares"):
        coverage([0.5], [0.5, 0.6], 3)
    with pytest.raises(ValueError, match="correct"):
        reliability(np.array([0.5]), np.array([True, False]))
