"""Matrices of examples, grouped by class: the kernel, the posterior mean and the two variances (Fig. 4)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from dnn2gp.plots import style
from dnn2gp.plots.style import Grouping


def correlations(kernel: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """The correlations ρ = κ(x, x′) / √(κ(x, x) κ(x′, x′)), symmetric and in [−1, 1]; 0 where κ(x, x) ≤ 0."""
    exact = kernel.astype(np.float64)
    diagonal = np.diagonal(exact)
    root = np.sqrt(np.where(diagonal > 0, diagonal, np.inf))
    scaled = exact / root[:, None] / root[None, :]
    return np.clip((scaled + scaled.T) / 2, -1, 1)


# Negative entries smaller than this share of the scale are invisible.
_SLIGHT = 0.02


def kernel_matrix(
    kernel: np.ndarray, labels: np.ndarray, names: tuple[str, ...] | None = None, *, of: str = ""
) -> Figure:
    """The N × N kernel between examples, with rows and columns grouped by class, as in Fig. 4(a), right.

    The colours end at the 99th percentile of |κ|, so that the few largest entries, mostly on the diagonal, do not hide
    the rest.

    Args:
        kernel: N × N.
        labels: The class of each example.
        names: The names of the classes 0, 1, …; by default the labels themselves.
        of: What the kernel belongs to, for the title.
    """
    labels = _check(kernel, labels, "kernel")
    if kernel.shape[0] != kernel.shape[1]:
        raise ValueError(f"kernel: expected a square matrix; got shape {kernel.shape}.")
    groups = Grouping.of(labels)
    values = kernel[np.ix_(groups.order, groups.order)]
    beside = style.names_beside(groups, names)
    figure = style.new_figure(7.8 + style.room(beside) / 72, 6.6)
    axes = figure.add_subplot()
    limit = style.colour_limit(values)
    norm = Normalize(-limit, limit)
    image = axes.imshow(values, cmap=style.DIVERGING, norm=norm, interpolation="nearest")
    style.class_bar(axes, groups, "left", names)
    style.class_bar(axes, groups, "top", names)
    style.class_lines(axes, groups, "#888888", both=True)
    beyond = (bool((values < -limit).any()), bool((values > limit).any()))
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[beyond]
    scale = style.colour_bar(axes, image, "tr κ(x, x′), the kernel summed over outputs (▲: beyond the scale)", extend)
    if values.min() > -_SLIGHT * limit:  # nothing blue to see
        scale.ax.set_ylim(min(0.0, float(values.min())), limit)
    title = _title("Kernel: which examples the network treats as similar", of)
    style.describe(axes, title, "the same examples", "examples, grouped by class", ("left", "top"), beside)
    _no_ticks(axes)
    return figure


def posterior_mean(
    mean: np.ndarray, labels: np.ndarray, names: tuple[str, ...] | None = None, *, of: str = ""
) -> Figure:
    """The N × K posterior mean, with rows grouped by class (Fig. 4(a), left); `names` and `of` as for the kernel."""
    labels = _check(mean, labels, "mean")
    groups = Grouping.of(labels)
    values = mean[groups.order]
    limit = float(np.abs(values).max()) or 1.0
    beside = style.names_beside(groups, names)
    figure = style.new_figure(5.2 + style.room(beside) / 72, 6.6)
    axes = figure.add_subplot()
    image = _rows(axes, values, groups, style.DIVERGING, Normalize(-limit, limit), names)
    style.class_lines(axes, groups, "#888888", both=False)
    style.colour_bar(axes, image, "J(x) μ")
    style.describe(
        axes,
        _title("Posterior mean J μ of the GP (not the network's output)", of),
        "output (class)",
        "examples, grouped by true class",
        ("left",),
        beside,
    )
    return figure


def uncertainty_maps(
    epistemic: np.ndarray,
    aleatoric: np.ndarray,
    labels: np.ndarray,
    names: tuple[str, ...] | None = None,
    *,
    of: str = "",
) -> Figure:
    """The two N × K parts of the predictive variance on one scale (Fig. 4(d)); `names` and `of` as for the kernel.

    The brightness follows the square root of the variance, so that small variances are visible next to large ones. It
    ends at ¼, the largest variance of a label of 0 or 1, which the epistemic part may exceed to first order.
    """
    labels = _check(epistemic, labels, "epistemic")
    _check(aleatoric, labels, "aleatoric")
    if epistemic.shape != aleatoric.shape:
        raise ValueError(f"epistemic, aleatoric: expected the same shape; got {epistemic.shape} and {aleatoric.shape}.")
    groups = Grouping.of(labels)
    largest = float(max(epistemic.max(), aleatoric.max())) or 1.0
    norm = PowerNorm(0.5, vmin=0.0, vmax=min(largest, 0.25))
    beside = style.names_beside(groups, names)
    figure = style.new_figure(8.8 + style.room(beside) / 72, 6.6)
    parts = {"Epistemic: model uncertainty": epistemic, "Aleatoric: label noise": aleatoric}
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (title, values) in zip(panels, parts.items(), strict=True):
        first = axes is panels[0]
        _rows(axes, values[groups.order], groups, style.SEQUENTIAL, norm, names, beside=first)
        style.class_lines(axes, groups, "#cccccc", both=False)
        rows = "examples, grouped by true class" if first else ""
        style.describe(axes, title, "output (class)", rows, ("left",), beside * first)
    if of:
        figure.suptitle(of, fontsize=style.TITLE, x=0.02, ha="left")
    scale = ScalarMappable(norm, style.SEQUENTIAL)
    beyond = largest > 0.25
    words = "variance of y, with the label of each class coded as 0 or 1" + " (▲: above ¼, to first order)" * beyond
    style.colour_bar(panels[1], scale, words, "max" if beyond else "neither")
    return figure


def _title(words: str, of: str) -> str:
    return f"{of}\n{words}" if of else words


def _rows(
    axes: Axes,
    values: np.ndarray,
    groups: Grouping,
    colours: str,
    norm: Normalize,
    names: tuple[str, ...] | None,
    *,
    beside: bool = True,
) -> AxesImage:
    """One row per example and one column per output, with the class bar on the left, named only if `beside`."""
    image = axes.imshow(values, cmap=colours, aspect="auto", interpolation="nearest", norm=norm)
    long = style.names_beside(groups, names)
    style.class_bar(axes, groups, "left", ("",) * len(long) if long and not beside else names)
    _no_ticks(axes)
    columns = range(values.shape[1])
    if long and len(long) == len(columns):
        axes.set_xticks(columns, long, rotation=90)
    else:
        axes.set_xticks(columns)
    return image


def _no_ticks(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])


def _check(values: np.ndarray, labels: np.ndarray, name: str) -> np.ndarray:
    """The labels, if there is one label per row and all values are finite."""
    labels = np.asarray(labels)
    if values.ndim != 2 or labels.shape != (len(values),) or len(values) == 0:
        raise ValueError(
            f"{name}: expected a matrix with one row, and one label, for each of N ≥ 1 examples; got shapes "
            f"{values.shape} and {labels.shape}."
        )
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: expected finite numbers; got NaN or infinity.")
    return labels
