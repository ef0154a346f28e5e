"""What the maps draw: the values in order of the classes, the bars beside them, and scales that mean something."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from dnn2gp.plots import kernel_matrix, posterior_mean, uncertainty_maps

LABELS = np.array([2, 0, 1, 0, 2, 2, 1])
ORDER = [1, 3, 2, 6, 0, 4, 5]
"""By class, and in the order of arrival within one."""


@pytest.fixture
def kernel() -> np.ndarray:
    features = np.random.default_rng(0).normal(size=(7, 3))
    return features @ features.T


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(7, 3))


def image(axes: Axes) -> np.ndarray:
    (drawn,) = axes.get_images()
    return np.asarray(drawn.get_array())


def limits(axes: Axes) -> tuple[float | None, float | None]:
    return axes.get_images()[0].get_clim()


def bars(axes: Axes) -> list[Axes]:
    return [child for child in axes.child_axes if child.get_images()]


def test_kernel_is_grouped_by_class_along_both_axes(kernel: np.ndarray) -> None:
    figure = kernel_matrix(kernel, LABELS)
    assert np.array_equal(image(figure.axes[0]), kernel[ORDER][:, ORDER])


def test_kernel_has_class_bars_along_both_axes(kernel: np.ndarray) -> None:
    left, top = bars(kernel_matrix(kernel, LABELS).axes[0])
    assert image(left)[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert image(top)[0].tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert [text.get_text() for text in left.texts] == ["0", "1", "2"]
    assert [text.get_position()[1] for text in left.texts] == [0.5, 2.5, 5]
    assert [text.get_position()[0] for text in top.texts] == [0.5, 2.5, 5]


def test_class_bars_have_the_colours_of_tab10(kernel: np.ndarray) -> None:
    (drawn,) = bars(kernel_matrix(kernel, LABELS).axes[0])[0].get_images()
    colours = drawn.to_rgba(np.array([0, 1, 2]))
    assert np.allclose(colours, [to_rgba(matplotlib.colormaps["tab10"](i)) for i in range(3)])


def test_bars_name_the_classes_that_there_are(kernel: np.ndarray) -> None:
    left, _ = bars(kernel_matrix(kernel, np.array([9, 4, 7, 4, 9, 9, 7])).axes[0])
    assert [text.get_text() for text in left.texts] == ["4", "7", "9"]
    assert image(left)[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("count", [12, 30])
def test_many_classes_have_colours_of_their_own(count: int) -> None:
    left, _ = bars(kernel_matrix(np.eye(count), np.arange(count)).axes[0])
    colours = left.get_images()[0].to_rgba(np.arange(count))
    assert len({tuple(colour) for colour in colours}) == count


def test_kernel_scale_is_centred_and_not_set_by_one_entry() -> None:
    kernel = np.ones((20, 20))
    kernel[3, 3] = 1000.0
    figure = kernel_matrix(kernel, np.zeros(20, dtype=int))
    assert limits(figure.axes[0]) == (-1.0, 1.0)


@pytest.mark.parametrize(("least", "low"), [(0.5, 0.0), (-0.01, -0.01), (-0.5, -1.0)])
def test_scale_shows_the_blue_that_there_is(least: float, low: float) -> None:
    kernel = np.ones((20, 20))
    kernel[0, 1] = kernel[1, 0] = least
    axes = kernel_matrix(kernel, np.zeros(20, dtype=int)).axes[0]
    (scale,) = [bar for bar in axes.child_axes if bar.get_ylabel()]
    assert scale.get_ylim() == (low, 1.0)


def test_mean_is_grouped_and_centred_at_zero(values: np.ndarray) -> None:
    axes = posterior_mean(values, LABELS).axes[0]
    assert np.array_equal(image(axes), values[ORDER])
    largest = np.abs(values).max()
    assert limits(axes) == (-largest, largest)
    (left,) = bars(axes)
    assert image(left)[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert axes.get_xticks().tolist() == [0, 1, 2]


def test_uncertainties_share_one_scale_from_zero(values: np.ndarray) -> None:
    epistemic, aleatoric = values**2, 0.1 * values[::-1] ** 2
    figure = uncertainty_maps(epistemic, aleatoric, LABELS)
    left, right = figure.axes[:2]
    assert np.array_equal(image(left), epistemic[ORDER])
    assert np.array_equal(image(right), aleatoric[ORDER])
    assert "Epistemic" in left.get_title(loc="left")
    assert "Aleatoric" in right.get_title(loc="left")
    assert limits(left) == limits(right) == (0.0, 0.25)  # what a label of 0 or 1 can have
    (scale,) = [bar for bar in right.child_axes if bar.get_ylabel()]
    assert "above ¼" in scale.get_ylabel()
    small = uncertainty_maps(0.01 * epistemic, 0.01 * aleatoric, LABELS).axes[0]
    assert limits(small) == (0.0, 0.01 * epistemic.max())


def test_long_names_are_beside_the_left_bar(values: np.ndarray) -> None:
    names = ("plane", "car", "bird", "cat", "automobile")
    labels = np.array([4, 0, 1, 0, 2, 3, 1])
    left, top = bars(kernel_matrix(np.eye(7), labels, names).axes[0])
    assert [text.get_text() for text in left.texts] == list(names)
    assert all(text.get_position()[0] < -0.5 for text in left.texts)
    assert not top.texts
    mean = posterior_mean(np.ones((7, 5)), labels, names).axes[0]
    assert [tick.get_text() for tick in mean.get_xticklabels()] == list(names)
    first, second = uncertainty_maps(np.ones((7, 2)), np.ones((7, 2)), labels, names).axes[:2]
    assert [text.get_text() for text in bars(first)[0].texts] == list(names)
    assert not any(text.get_text() for text in bars(second)[0].texts)
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["0", "1"]  # no class each


@pytest.mark.parametrize("draw", [kernel_matrix, posterior_mean])
def test_words_and_a_scale(draw, kernel: np.ndarray) -> None:
    figure = draw(kernel, LABELS)
    (axes,) = figure.axes
    assert axes.get_title(loc="left")
    assert axes.get_xlabel()
    assert "class" in axes.get_ylabel()
    assert [bar for bar in axes.child_axes if bar.get_ylabel()]  # the scale; class bars have no label


@pytest.mark.parametrize("draw", [kernel_matrix, posterior_mean, lambda v, y: uncertainty_maps(v, v, y)])
def test_one_example_and_all_zero(draw) -> None:
    figure = draw(np.zeros((1, 1)), np.array([3]))
    figure.canvas.draw()
    assert image(figure.axes[0]).tolist() == [[0.0]]


@pytest.mark.slow
@pytest.mark.parametrize("draw", [kernel_matrix, posterior_mean, lambda v, y: uncertainty_maps(v, v, y)])
@pytest.mark.parametrize("count", [7, 300])
def test_nothing_is_cut_off(draw, count: int) -> None:
    values, labels = np.random.default_rng(0).uniform(size=(count, count)), np.arange(count) % 3
    figure = draw(values, labels) if draw is kernel_matrix else draw(values[:, :7], labels)
    figure.canvas.draw()
    drawn, page = figure.get_tightbbox(), figure.bbox_inches
    assert drawn.x0 >= 0
    assert drawn.y0 >= 0
    assert drawn.x1 <= page.x1
    assert drawn.y1 <= page.y1


def test_figures_leave_pyplot_alone(kernel: np.ndarray) -> None:
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    kernel_matrix(kernel, LABELS).canvas.draw()
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        (np.zeros((7, 6)), LABELS, "square"),
        (np.zeros((6, 6)), LABELS, r"\(6, 6\) and \(7,\)"),
        (np.zeros(7), LABELS, r"\(7,\) and \(7,\)"),
        (np.zeros((0, 0)), np.zeros(0), "N ≥ 1"),
        (np.full((7, 7), np.nan), LABELS, "NaN"),
    ],
)
def test_refusals(values: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel_matrix(values, labels)


def test_the_two_variances_must_have_one_shape(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="epistemic, aleatoric"):
        uncertainty_maps(values, values[:, :2], LABELS)
