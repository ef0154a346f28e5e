"""From the FigureResult of an experiment to its pictures, each under the end of its file name."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import roc_curve

from dnn2gp.paper.figure_result import FigureResult
from dnn2gp.paper.figures.ood import SCORES, auroc
from dnn2gp.paper.figures.snelson import OURS, RBF_GP, SAMPLED
from dnn2gp.paper.figures.tune_wine import DELTA, SIGMA, WIDTH
from dnn2gp.paper.figures.two_d import POINTS
from dnn2gp.paper.images import LAPLACE, VI, WORDS
from dnn2gp.plots.bands import Band, band_panels
from dnn2gp.plots.features import network_as_gp
from dnn2gp.plots.matrices import kernel_matrix, posterior_mean, uncertainty_maps
from dnn2gp.plots.outliers import Roc, outliers
from dnn2gp.plots.plane import plane_maps
from dnn2gp.plots.tuning_panels import Fit, Panel, fits_and_panels, tuning_panels
from dnn2gp.plots.widths import widths

Drawings = dict[str, Figure]
_NAMES = {"mnist": "MNIST", "binary_mnist": "MNIST, trained on 0 and 1", "cifar": "CIFAR-10"}


def two_d(result: FigureResult) -> Drawings:
    """Fig. 2."""
    own = result.arrays
    marked = {name: int(place) for name, place in zip(POINTS, own["points"], strict=True)}
    figure = network_as_gp(
        inputs=own["inputs"],
        labels=own["labels"],
        x=own["x"],
        y=own["y"],
        probabilities=own["plane"],
        features=own["features"],
        kernel=own["kernel"],
        posterior_mean=own["posterior_mean"],
        marked=marked,
    )
    return {"": figure}


def snelson(result: FigureResult) -> Drawings:
    """Fig. 3."""
    own = result.arrays
    names = {OURS: "DNN2GP", SAMPLED: "DNN", RBF_GP: "GP-RBF"}
    panels = {}
    for method, words in WORDS.items():
        bands = [
            Band(
                f"{label}-{words}" if name != RBF_GP else label,
                own[f"{method}_{name}_mean"],
                own[f"{method}_{name}_std"],
            )
            for name, label in names.items()
        ]
        panels[words] = bands
    low, high = float(own["targets"].min()), float(own["targets"].max())
    room = high - low
    gap = (float(result.config["gap"][0]), float(result.config["gap"][1]))
    height = (low - 0.9 * room, high + 1.2 * room)
    return {"": band_panels(own["x"], panels, own["inputs"], own["targets"], gap=gap, height=height)}


def images(result: FigureResult) -> Drawings:
    """Figs. 4, 7 and 8: kernel, posterior mean and uncertainties of each method."""
    own, labels = result.arrays, result.arrays["labels"]
    names = tuple(map(str, own["classes"]))
    drawn: Drawings = {}
    for method in (method for method in (LAPLACE, VI) if f"{method}_kernel" in own):
        of = f"{_NAMES[result.figure]}, {WORDS[method]}"
        drawn[f"{method}-kernel"] = kernel_matrix(own[f"{method}_kernel"], labels, names, of=of)
        drawn[f"{method}-posterior-mean"] = posterior_mean(own[f"{method}_posterior_mean"], labels, names, of=of)
        drawn[f"{method}-uncertainty"] = uncertainty_maps(
            own[f"{method}_epistemic"], own[f"{method}_aleatoric"], labels, names, of=of
        )
    return drawn


def tune_synthetic(result: FigureResult) -> Drawings:
    """Fig. 5: fits, and the curves of both methods."""
    own = result.arrays
    rows = zip(own["fit_delta"], own["fit_mean"], own["fit_std"], strict=True)
    fits = [Fit(f"δ = {delta:.3g}", mean, std) for delta, mean, std in rows]
    panels = [_panel(own, method, own["delta"], "δ", words) for method, words in WORDS.items()]
    return {"": fits_and_panels(own["fit_x"], fits, own["fit_inputs"], own["fit_targets"], panels)}


def tune_wine(result: FigureResult) -> Drawings:
    """Fig. 6: δ, σ and width."""
    own = result.arrays
    names = {DELTA: ("δ", "Prior precision"), SIGMA: ("σ", "Noise"), WIDTH: ("hidden units", "Width")}
    panels = [
        _panel(own, setting, own[f"{setting}_values"], label, title, log_x=setting != WIDTH)
        for setting, (label, title) in names.items()
    ]
    return {"": tuning_panels(panels, error_label="mean squared error of quality")}


def _panel(
    own: dict[str, np.ndarray], prefix: str, settings: np.ndarray, label: str, title: str, *, log_x: bool = True
) -> Panel:
    def band(name: str) -> tuple[np.ndarray, np.ndarray]:
        return own[f"{prefix}_{name}_mean"], own[f"{prefix}_{name}_stderr"]

    errors = {"train": band("train_error"), "test": band("test_error")}
    return Panel(settings, band("evidence"), errors, label, title, log_x)


def moons(result: FigureResult) -> Drawings:
    """Fig. 9."""
    own = result.arrays
    maps = {
        "Mean: probability of a class": own["mean"],
        "Aleatoric: noise of the labels": own["aleatoric"],
        "Epistemic: what the model does not know": own["epistemic"],
        "The variance of f in it": own["latent"],
    }
    words = ("p(y = 1)", "variance of y given f", "(p (1 − p))² var f (to first order)", "var f")
    scales: dict[str, str] = dict(zip(maps, words, strict=True))
    return {"": plane_maps(own["x"], own["y"], maps, own["inputs"], own["labels"], scales=scales)}


def width(result: FigureResult) -> Drawings:
    """Beyond the paper: the infinite limit."""
    own = result.arrays
    errors = {"all weights": own["kernel_error"], "last layer": own["last_layer_error"]}
    limit, data = (own["infinite_mean"], own["infinite_std"]), (own["inputs"], own["targets"])
    return {"": widths(own["widths"], errors, own["x"], own["means"], own["stds"], limit, data)}


def ood(result: FigureResult) -> Drawings:
    """Beyond the paper: digits and clothes."""
    own = result.arrays
    drawn: Drawings = {}
    order = np.lexsort([np.concatenate([own["digits"], own["clothes"]]), own["few_outside"]])  # by class within a set
    for method in (method for method in (LAPLACE, VI) if f"{method}_kernel" in own):
        names, title = ("digits", "clothes"), f"{WORDS[method]}: a network of digits sees clothes"
        curves = [Roc(words, *_roc(own, method, score)) for score, words in SCORES.items()]
        first = next(iter(SCORES))
        drawn[f"{method}-scores"] = outliers(
            own[f"{method}_{first}"], own["outside"], curves, names, SCORES[first], title
        )
        kernel = own[f"{method}_kernel"][np.ix_(order, order)]
        drawn[f"{method}-kernel"] = kernel_matrix(
            kernel, own["few_outside"][order], names, of=f"{WORDS[method]}: digits and clothes"
        )
    return drawn


def _roc(own: dict[str, np.ndarray], method: str, score: str) -> tuple[np.ndarray, np.ndarray, float]:
    known, other, _ = roc_curve(own["outside"], own[f"{method}_{score}"])
    return known, other, auroc(own, method, score)
