"""Pictures along training: what is drawn is what was handed in."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from dnn2gp.plots import kernel_animation, kernel_strip, posterior_animation, posterior_strip
from dnn2gp.plots.evolution import MEAN

GRID = np.linspace(-1, 1, 50)
DATA = np.array([-0.5, 0.5]), np.array([0.2, -0.3])
MEANS = np.stack([np.sin(GRID), np.cos(GRID), GRID])
SPREAD = np.stack([0.3 + 0 * GRID, 0.2 + 0 * GRID, 0.1 + 0 * GRID])


def test_posterior_strip() -> None:
    figure = posterior_strip([1, 10, 1000], GRID, MEANS, SPREAD, 0.1, DATA)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "after 1 step",
        "after 10 steps",
        "after 1,000 steps",
    ]
    for axes, mean in zip(figure.axes, MEANS, strict=True):
        lines = {line.get_label(): line for line in axes.get_lines()}
        np.testing.assert_array_equal(lines["mean"].get_ydata(), mean)
        assert to_rgb(lines["mean"].get_color()) == to_rgb(MEAN)
        np.testing.assert_array_equal(lines["data"].get_xdata(), DATA[0])
    wide, narrow = (collection.get_datalim(figure.axes[0].transData) for collection in figure.axes[0].collections)
    assert wide.height > narrow.height
    assert {axes.get_ylim() for axes in figure.axes} == {figure.axes[0].get_ylim()}


def test_kernel_strip_shows_correlations() -> None:
    generator = np.random.default_rng(0)
    factors = generator.normal(size=(2, 6, 4))
    kernels = factors @ factors.transpose(0, 2, 1)
    figure = kernel_strip([1, 5], kernels, np.array([1, 0, 1, 0, 2, 2]))
    shown = [axes.get_images()[0].get_array() for axes in figure.axes if axes.get_images()][:2]
    order = [1, 3, 0, 2, 4, 5]
    for image, kernel in zip(shown, kernels, strict=True):
        assert image is not None
        scale = np.sqrt(np.diagonal(kernel))
        np.testing.assert_allclose(image, (kernel / scale[:, None] / scale)[np.ix_(order, order)], rtol=1e-12)


@pytest.mark.slow
def test_animations(tmp_path) -> None:
    first = posterior_animation([1, 2, 3], GRID, MEANS, SPREAD, 0.1, DATA)
    kernels = np.stack([np.eye(4) + size * np.ones((4, 4)) for size in (0.1, 1.0, 10.0)])
    second = kernel_animation([1, 2, 3], kernels, np.array([0, 0, 1, 1]))
    for name, animation in (("a.gif", first), ("b.gif", second)):
        animation.save(tmp_path / name, writer="pillow")
        with Image.open(tmp_path / name) as image:
            assert image.n_frames == 3
            frames = [np.asarray(image.convert("RGB")) for position in range(3) if image.seek(position) is None]
        assert all((frames[i] != frames[j]).any() for i, j in ((0, 1), (1, 2)))


def test_bad_arrays() -> None:
    with pytest.raises(ValueError, match="one array for each of 2 steps"):
        posterior_strip([1, 2], GRID, MEANS, SPREAD, 0.1, DATA)
    with pytest.raises(ValueError, match="NaN"):
        posterior_strip([1, 2, 3], GRID, MEANS * np.nan, SPREAD, 0.1, DATA)
