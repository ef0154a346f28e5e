"""Fig. 4(a) and Fig. 7, left: LeNet-5 on MNIST, its kernel, posterior mean and uncertainties, by Laplace and by VI."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from dnn2gp.paper.figure_result import FigureResult, check_preset, plain, written
from dnn2gp.paper.images import LAPLACE, VI, WORDS, ImagesConfig, accuracy_claim, kernel_claim, look_at_all
from dnn2gp.plots.correlations import correlations
from dnn2gp.plots.report.claim import Claim

# A correlation below this one is more than noise.
_NEGATIVE = -0.05


def preset(name: str) -> ImagesConfig:
    """`paper`, or `smoke`: a little of it."""
    whole = ImagesConfig()
    return whole.smaller() if check_preset(name) == "smoke" else whole


def run(config: ImagesConfig, folder: Path) -> FigureResult:
    """Train by both methods, weights kept in `folder`, and look at some examples of each digit."""
    begin = time.perf_counter()
    arrays = look_at_all(config, folder)
    return FigureResult("mnist", plain(config), arrays, claims(arrays, config), time.perf_counter() - begin)


def claims(arrays: dict[str, np.ndarray], config: ImagesConfig) -> tuple[Claim, ...]:
    """Accuracy, kernel and posterior mean."""
    found = []
    for method in config.methods:
        own = float(arrays[f"{method}_accuracy"])
        if method == LAPLACE:
            found.append(accuracy_claim("LeNet-5 by Adam", own, "99 %", lambda value: value >= 0.99))
        else:
            found.append(accuracy_claim("LeNet-5 by VOGN, at the mean", own, "not said", None))
        found.append(kernel_claim("MNIST", arrays, method, "Fig. 4(a), 7: examples of one class are correlated"))
        found.append(posterior_mean_claim(arrays, method, "Fig. 4(a), 7: the pattern follows the classes"))
    if {LAPLACE, VI} <= set(config.methods):
        found.append(_negative_claim(arrays))
    return tuple(found)


def posterior_mean_claim(arrays: dict[str, np.ndarray], method: str, paper: str) -> Claim:
    """Whether the posterior mean of the true class is the largest."""
    share = float((arrays[f"{method}_posterior_mean"].argmax(1) == arrays["labels"]).mean())
    words = f"largest at the true class for {share:.0%} of the training examples looked at"
    what, bar = f"{WORDS[method]}: the posterior mean reflects the classes", f"{paper} (here: for more than half)"
    return Claim(what, bar, words, share > 0.5)


def _negative_claim(arrays: dict[str, np.ndarray]) -> Claim:
    """VI's kernel has more negative correlations between classes; of those that are 0 but for noise it says nothing."""
    other = arrays["labels"][:, None] != arrays["labels"][None, :]
    found = {method: correlations(arrays[f"{method}_kernel"])[other] for method in (VI, LAPLACE)}
    strong = {method: float((own < _NEGATIVE).mean()) for method, own in found.items()}
    signs, least = [f"{(own < 0).mean():.1%}" for own in found.values()], [own.min() for own in found.values()]
    bar = written(_NEGATIVE, "g")
    return Claim(
        "VI's kernel has more negative correlations between classes than Laplace's",
        f"App. C: many more (here: more below {bar})",
        f"below {bar}: {strong[VI]:.1%} beside {strong[LAPLACE]:.1%} of the pairs (below 0: {' beside '.join(signs)}; "
        f"the least {' beside '.join(written(own, '.2f') for own in least)})",
        strong[VI] > strong[LAPLACE],
    )
