"""What changes during training: a strip with one panel per step, or an animation of the same panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.animation import FuncAnimation
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from dnn2gp.plots import style
from dnn2gp.plots.matrices import correlations
from dnn2gp.plots.style import Grouping

MEAN, BAND, WIDE_BAND = "#1d3d78", "#7f9fd0", "#cfd8e6"
"""The mean of a GP, its epistemic band, and its band including noise."""


def posterior_strip(
    steps: Sequence[int],
    grid: np.ndarray,
    means: np.ndarray,
    epistemic: np.ndarray,
    noise: float,
    data: tuple[np.ndarray, np.ndarray],
) -> Figure:
    """The GP of one input after each of T steps, from T × n means and epistemic standard deviations on the grid."""
    _check(steps, means, epistemic)
    figure = style.new_figure(2.9 * len(steps) + 0.6, 3.4)
    panels = figure.subplots(1, len(steps), sharex=True, sharey=True, squeeze=False)[0]
    limits = _limits(data[1], means[-1], epistemic[-1], noise)
    for position, axes in enumerate(panels):
        _posterior(axes, grid, means[position], epistemic[position], noise, data)
        axes.set_ylim(*limits)
        axes.set_xlim(grid[0], grid[-1])
        style.describe(axes, _after(steps[position]), "x", "y" if position == 0 else "")
    handles, names = panels[0].get_legend_handles_labels()
    style.legend_of(figure, dict(zip(names, handles, strict=True)))
    return figure


def kernel_strip(steps: Sequence[int], kernels: np.ndarray, labels: np.ndarray) -> Figure:
    """The T × N × N kernels after each of T steps, grouped by class, as correlations κ(x, x') / √(κ(x, x) κ(x', x')).

    The scale of the kernel changes by orders of magnitude while q_t narrows; correlations show which examples are
    similar.
    """
    _check(steps, kernels)
    groups = _groups(kernels, labels)
    figure = style.new_figure(2.9 * len(steps) + 0.9, 3.5)
    panels = figure.subplots(1, len(steps), squeeze=False)[0]
    images = [_kernel(axes, kernels[i], groups, steps[i]) for i, axes in enumerate(panels)]
    style.colour_bar(panels[-1], images[-1], "correlation of f(x) and f(x′)")
    return figure


def posterior_animation(
    steps: Sequence[int],
    grid: np.ndarray,
    means: np.ndarray,
    epistemic: np.ndarray,
    noise: float,
    data: tuple[np.ndarray, np.ndarray],
    seconds: float = 6.0,
) -> FuncAnimation:
    """The panels of `posterior_strip` as an animation: `.save("steps.gif", writer="pillow")`."""
    _check(steps, means, epistemic)
    limits = _limits(data[1], means[-1], epistemic[-1], noise)

    def draw(axes: Axes, position: int) -> None:
        _posterior(axes, grid, means[position], epistemic[position], noise, data)
        axes.set_ylim(*limits)
        axes.set_xlim(grid[0], grid[-1])
        style.describe(axes, _after(steps[position]), "x", "y")
        axes.legend(loc="lower center", ncols=2, frameon=False, fontsize=style.TICK)

    return _animated(len(steps), draw, seconds, (5.2, 3.6))


def kernel_animation(
    steps: Sequence[int], kernels: np.ndarray, labels: np.ndarray, seconds: float = 6.0
) -> FuncAnimation:
    """The panels of `kernel_strip` as an animation: `.save("kernels.gif", writer="pillow")`."""
    _check(steps, kernels)
    groups = _groups(kernels, labels)
    return _animated(len(steps), lambda axes, i: _kernel(axes, kernels[i], groups, steps[i]), seconds, (4.0, 4.4))


def _animated(
    count: int, draw: Callable[[Axes, int], object], seconds: float, size: tuple[float, float]
) -> FuncAnimation:
    figure = style.new_figure(*size)
    axes = figure.add_subplot()

    def frame(position: int) -> list:
        axes.clear()
        draw(axes, position)
        return []

    return FuncAnimation(figure, frame, frames=count, interval=min(1000, round(1000 * seconds / count)))


def _kernel(axes: Axes, kernel: np.ndarray, groups: Grouping, step: int) -> AxesImage:
    """One kernel as correlations, grouped by class; the title gives its scale."""
    values = correlations(kernel)[np.ix_(groups.order, groups.order)]
    image = axes.imshow(values, cmap=style.DIVERGING, norm=Normalize(-1, 1), interpolation="nearest")
    style.class_bar(axes, groups, "left")
    style.class_lines(axes, groups, "#888888", both=True)
    scale = np.sqrt(np.diagonal(kernel).mean())
    style.describe(axes, f"{_after(step)}\n√mean κ(x, x) = {scale:.2g}")
    axes.set_xticks([])
    axes.set_yticks([])
    return image


def _posterior(
    axes: Axes, grid: np.ndarray, mean: np.ndarray, epistemic: np.ndarray, noise: float, data: tuple
) -> None:
    """The mean and two bands of two standard deviations, with the data."""
    total = np.sqrt(epistemic**2 + noise**2)
    axes.fill_between(grid, mean - 2 * total, mean + 2 * total, color=WIDE_BAND, label="± 2 std, with noise")
    axes.fill_between(grid, mean - 2 * epistemic, mean + 2 * epistemic, color=BAND, label="± 2 std, epistemic")
    axes.plot(grid, mean, color=MEAN, label="mean")
    axes.plot(*data, "k.", markersize=4, label="data")


def _limits(y: np.ndarray, mean: np.ndarray, epistemic: np.ndarray, noise: float) -> tuple[float, float]:
    """A range of y that shows the data and most of the last posterior, regardless of the width of the first bands."""
    spread = 2.5 * float(np.median(np.sqrt(epistemic**2 + noise**2)))
    low, high = min(y.min(), np.percentile(mean, 5)), max(y.max(), np.percentile(mean, 95))
    margin = max(spread, 0.35 * float(high - low))
    return float(low - margin), float(high + margin)


def _after(step: int) -> str:
    return f"after {step:,} step{'' if step == 1 else 's'}"


def _groups(kernels: np.ndarray, labels: np.ndarray) -> Grouping:
    if kernels.shape[1:] != (len(labels), len(labels)):
        raise ValueError(f"kernels: expected T × N × N with N = {len(labels)} labels; got shape {kernels.shape}.")
    return Grouping.of(np.asarray(labels))


def _check(steps: Sequence[int], *arrays: np.ndarray) -> None:
    if not len(steps) or any(len(array) != len(steps) for array in arrays):
        raise ValueError(
            f"steps: expected one array for each of {len(steps)} steps; got {[len(array) for array in arrays]}."
        )
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("arrays: expected finite numbers; got NaN or infinity.")
