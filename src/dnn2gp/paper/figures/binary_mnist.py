"""Fig. 4(c): LeNet-5 trained by VOGN on the digits 0 and 1 alone, looked at on all ten."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from dnn2gp.paper.figure_result import FigureResult, check_preset, plain
from dnn2gp.paper.images import VI, ImagesConfig, accuracy_claim, look_at_all
from dnn2gp.plots.correlations import correlations
from dnn2gp.plots.report.claim import Claim


def preset(name: str) -> ImagesConfig:
    """`paper`, or `smoke`: a little of it."""
    whole = ImagesConfig(classes=(0, 1), methods=(VI,), vogn_epochs=20)
    return whole.smaller() if check_preset(name) == "smoke" else whole


def run(config: ImagesConfig, folder: Path) -> FigureResult:
    """Train on some of the digits; kernel and posterior mean of some examples of every digit."""
    begin = time.perf_counter()
    arrays = look_at_all(config, folder)
    return FigureResult("binary_mnist", plain(config), arrays, claims(arrays, config), time.perf_counter() - begin)


def claims(arrays: dict[str, np.ndarray], config: ImagesConfig) -> tuple[Claim, ...]:
    """What the network makes of digits that it never saw."""
    found = []
    seen = np.isin(arrays["labels"], config.classes)
    digits = " and ".join(map(str, config.classes))
    for method in config.methods:
        accuracy = float(arrays[f"{method}_accuracy"])
        found.append(accuracy_claim(f"LeNet-5 by VOGN on {digits}", accuracy, "not said", None))
        size = np.abs(arrays[f"{method}_posterior_mean"]).mean(1)
        inside, outside = float(size[seen].mean()), float(size[~seen].mean())
        sure = float((arrays[f"{method}_probabilities"][~seen].max(1) > 0.99).mean())
        found.append(
            Claim(
                "the posterior mean is smaller on digits that were never seen",
                "Fig. 4(c), as it is drawn (here: mean |J μ| below)",
                f"mean |J μ| {outside:.3g} on unseen digits, {inside:.3g} on {digits}",
                outside < inside,
            )
        )
        found.append(
            Claim(
                "no overconfident predictions on digits that were never seen",
                "Fig. 4(c): none (here: at most half of them above 0.99)",
                f"the network gives {sure:.0%} of them a probability above 0.99",
                sure <= 0.5,
            )
        )
        found += _correlation_claims(correlations(arrays[f"{method}_kernel"]), arrays["labels"], config.classes)
    return tuple(found)


def _correlation_claims(correlation: np.ndarray, labels: np.ndarray, classes: tuple[int, ...]) -> list[Claim]:
    """Slight correlations with unseen digits, strong ones between the seen: mean |ρ| of each kind of pair."""
    size, known = np.abs(correlation), np.isin(labels, classes)
    pairs = known[:, None] & known[None, :] & ~np.eye(len(labels), dtype=bool)
    same = labels[:, None] == labels[None, :]
    within, between = float(size[pairs & same].mean()), float(size[pairs & ~same].mean())
    beyond = np.stack([size[np.ix_(labels == own, ~known)].mean(0) for own in classes])  # of each unseen example
    nearer, mean = float(beyond.max(0).mean()), float(size[np.ix_(known, ~known)].mean())
    digits = " and ".join(map(str, classes))
    return [
        Claim(
            "correlations with unseen digits are slight",
            "Fig. 4(c): slight (here: with the nearer of the seen digits half of that within a digit, or less)",
            f"mean |correlation| {nearer:.2f} with the nearer of {digits} ({mean:.2f} with both), {within:.2f} within "
            "a digit",
            nearer <= 0.5 * within,
        ),
        Claim(
            f"the pattern between {digits} is strong",
            "Fig. 4(c): quite strong (here: above that with unseen digits)",
            f"mean |correlation| {between:.2f} between {digits}, {mean:.2f} with unseen digits",
            between > mean,
        ),
    ]
