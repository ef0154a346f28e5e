"""Fig. 4(c): LeNet-5 trained with VOGN on the digits 0 and 1 alone, and evaluated on all ten."""

from __future__ import annotations

from functools import partial

import numpy as np

from dnn2gp.paper import image_figures
from dnn2gp.paper.figure import Arrays, FigureKind
from dnn2gp.paper.image_networks import VI, ImagesConfig
from dnn2gp.plots.matrices import correlations
from dnn2gp.plots.report.section import Claim


def claims(arrays: Arrays, config: ImagesConfig) -> tuple[Claim, ...]:
    """How the network treats digits that it has never seen."""
    found = []
    seen, digits = np.isin(arrays["labels"], config.classes), " and ".join(map(str, config.classes))
    for method in config.methods:
        size = np.abs(arrays[f"{method}_posterior_mean"]).mean(1)
        inside, outside = float(size[seen].mean()), float(size[~seen].mean())
        certain = float((arrays[f"{method}_probabilities"][~seen].max(1) > 0.99).mean())
        found += [
            Claim(
                f"test accuracy of LeNet-5 trained with VOGN on {digits}",
                "not stated",
                f"{float(arrays[f'{method}_accuracy']):.2%}",
                None,
            ),
            Claim(
                "the posterior mean is smaller on unseen digits",
                "Fig. 4(c), as drawn (here: smaller mean |J μ|)",
                f"mean |J μ| is {outside:.3g} on unseen digits, {inside:.3g} on {digits}",
                outside < inside,
            ),
            Claim(
                "predictions on unseen digits are not overconfident",
                "Fig. 4(c): no overconfidence (here: at most half of them above 0.99)",
                f"the network gives {certain:.0%} of them a probability above 0.99",
                certain <= 0.5,
            ),
            *_correlation_claims(correlations(arrays[f"{method}_kernel"]), arrays["labels"], config.classes),
        ]
    return tuple(found)


def _correlation_claims(correlation: np.ndarray, labels: np.ndarray, classes: tuple[int, ...]) -> list[Claim]:
    """Weak correlations with unseen digits, strong ones between the seen: the mean |ρ| of each kind of pair."""
    size, known = np.abs(correlation), np.isin(labels, classes)
    pairs = known[:, None] & known[None, :] & ~np.eye(len(labels), dtype=bool)
    same = labels[:, None] == labels[None, :]
    within, between = float(size[pairs & same].mean()), float(size[pairs & ~same].mean())
    beyond = np.stack([size[np.ix_(labels == own, ~known)].mean(0) for own in classes])  # for each unseen example
    closer, mean = float(beyond.max(0).mean()), float(size[np.ix_(known, ~known)].mean())
    digits = " and ".join(map(str, classes))
    return [
        Claim(
            "correlations with unseen digits are weak",
            "Fig. 4(c): slight (here: with the closer of the seen digits at most half of that within a digit)",
            f"mean |correlation| {closer:.2f} with the closer of {digits} ({mean:.2f} with both), {within:.2f} within "
            "a digit",
            closer <= 0.5 * within,
        ),
        Claim(
            f"the pattern between {digits} is strong",
            "Fig. 4(c): quite strong (here: stronger than with unseen digits)",
            f"mean |correlation| {between:.2f} between {digits}, {mean:.2f} with unseen digits",
            between > mean,
        ),
    ]


_PAPER = ImagesConfig(classes=(0, 1), methods=(VI,), vogn_epochs=20)
FIGURE = FigureKind(
    name="binary_mnist",
    order=41,
    title="Fig. 4(c): trained on 0 and 1, evaluated on all digits",
    caption="The network was trained with VOGN on the digits 0 and 1 only. The maps show the kernel and the posterior "
    "mean for some images of every digit.",
    paper=_PAPER,
    smoke=_PAPER.smaller(),
    compute=image_figures.compute,
    claims=claims,
    draw=partial(image_figures.draw, name="MNIST, trained on 0 and 1"),
    maps=image_figures.maps,
    network="binary_mnist",
)
