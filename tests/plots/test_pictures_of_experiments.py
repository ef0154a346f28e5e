"""The pictures of the experiments: what is drawn where, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from dnn2gp.plots.bands import Band, band_panels
from dnn2gp.plots.features import network_as_gp
from dnn2gp.plots.matrices import kernel_matrix
from dnn2gp.plots.outliers import Roc, outliers
from dnn2gp.plots.plane import plane_maps
from dnn2gp.plots.widths import widths

GENERATOR = np.random.default_rng(0)
X, Y = np.linspace(-1, 1, 6), np.linspace(-1, 1, 5)
POINTS, LABELS = GENERATOR.normal(size=(8, 2)), np.array([0, 1] * 4)


def rendered(figure) -> bool:
    figure.canvas.draw()
    return True


def test_maps_over_the_plane():
    values = GENERATOR.uniform(size=(5, 6))
    figure = plane_maps(X, Y, {"Mean": values, "Other": 3 * values}, POINTS, LABELS, scales={"Mean": "a", "Other": "b"})
    mean, other = figure.axes[:2]
    np.testing.assert_array_equal(mean.images[0].get_array(), values)
    assert mean.images[0].get_clim() == (0, 1)
    assert other.images[0].get_clim() == (0, 3 * values.max())
    drawn = np.concatenate(
        [np.asarray(points.get_offsets()) for points in mean.collections if len(points.get_offsets()) > 1]
    )
    assert {tuple(row) for row in POINTS} <= {tuple(row) for row in drawn}
    assert rendered(figure)
    with pytest.raises(ValueError, match="5 × 6"):
        plane_maps(X, Y, {"Mean": values.T}, POINTS, LABELS, scales={"Mean": "a"})


def test_bands():
    band = Band("one", X**2, np.full(6, 0.5))
    figure = band_panels(X, {"Laplace": [band], "VI": [band]}, X, X, gap=(0.1, 0.4), height=(-1.0, 2.0))
    lines = [line.get_ydata() for line in figure.axes[0].lines]
    assert any(np.allclose(line, X**2 - 0.5) for line in lines)
    assert any(np.allclose(line, X**2 + 0.5) for line in lines)
    *_, below, _ = figure.axes
    (line,) = below.lines
    np.testing.assert_array_equal(line.get_ydata(), np.full(6, 0.5))
    assert below.get_ylabel() == "standard deviation of y"
    assert len(figure.axes) == 4
    assert rendered(figure)
    with pytest.raises(ValueError, match="one: expected"):
        band_panels(X, {"a": [Band("one", X[:3], X[:3])]}, X, X)
    with pytest.raises(ValueError, match="at least one"):
        band_panels(X, {}, X, X)


@pytest.mark.slow
def test_a_network_as_a_gp():
    """Rows are grouped by class, within it by the posterior mean; the letters stand at their rows."""
    features = GENERATOR.normal(size=(8, 4))
    kernel, mean = features @ features.T, GENERATOR.normal(size=8)
    plane = GENERATOR.uniform(size=(5, 6))
    figure = network_as_gp(POINTS, LABELS, X, Y, plane, features, kernel, mean, {"A": 3})
    order = sorted(range(8), key=lambda row: (LABELS[row], mean[row]))
    shown = [np.asarray(image.get_array()) for axes in _all_axes(figure) for image in axes.images]
    assert any(image.shape == (8, 8) and np.allclose(image, kernel[np.ix_(order, order)]) for image in shown)
    assert any(image.shape == (8, 4) and np.allclose(image, features[order]) for image in shown)
    assert rendered(figure)
    with pytest.raises(ValueError, match="8 rows of features"):
        network_as_gp(POINTS, LABELS, X, Y, plane, features[:3], kernel, mean, {})


def _all_axes(figure):
    yield from figure.axes
    for below in figure.subfigs:
        yield from _all_axes(below)


def test_outliers():
    values, outside = GENERATOR.uniform(0.1, 1, size=20), np.array([0, 1] * 10)
    curve = Roc("score", np.array([0, 0.5, 1]), np.array([0, 1, 1]), 0.75)
    figure = outliers(values, outside, [curve], ("digits", "clothes"), "score", "title")
    heights = sum(patch.get_height() for patch in figure.axes[0].patches)
    assert heights == pytest.approx(2)  # each kind sums to 1
    assert "0.750  score" in [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert rendered(figure)
    with pytest.raises(ValueError, match="finite score for each of 20"):
        outliers(values[:3], outside, [curve], ("a", "b"), "x", "t")
    with pytest.raises(ValueError, match="curves"):
        outliers(values, outside, [curve] * 7, ("a", "b"), "x", "t")


def test_widths():
    counts, errors = np.array([4, 16, 64]), GENERATOR.uniform(0.1, 1, size=(3, 2))
    means, stds = GENERATOR.normal(size=(3, 2, 6)), np.ones((3, 2, 6))
    figure = widths(counts, {"all weights": errors}, X, means, stds, (X, np.ones(6)), (POINTS[:, 0], POINTS[:, 1]))
    lines = [line.get_ydata() for line in figure.axes[0].lines]
    assert any(np.allclose(line, errors.mean(1)) for line in lines)
    assert any(
        np.allclose(line, means[2, 0]) for line in figure.axes[3].lines for line in [line.get_ydata()] if len(line) == 6
    )
    assert rendered(figure)


def test_names_of_classes_in_a_kernel():
    figure = kernel_matrix(np.eye(8), LABELS, ("digits", "clothes"))
    texts = [text.get_text() for child in figure.axes[0].child_axes for text in child.texts]
    assert texts == ["digits", "clothes"] * 2
    assert rendered(figure)
