"""Fig. 4(a) and Fig. 7, left: LeNet-5 on MNIST; kernel, posterior mean and uncertainties by Laplace and by VI."""

from __future__ import annotations

from functools import partial

from dnn2gp.paper import image_figures
from dnn2gp.paper.figure import Arrays, FigureKind, written
from dnn2gp.paper.image_figures import accuracy_claim, kernel_claim, posterior_mean_claim
from dnn2gp.paper.image_networks import LAPLACE, VI, ImagesConfig
from dnn2gp.plots.matrices import correlations
from dnn2gp.plots.report.section import Claim

# Correlations above this one are counted as noise around 0.
_NEGATIVE = -0.05


def claims(arrays: Arrays, config: ImagesConfig) -> tuple[Claim, ...]:
    """Accuracy, kernel and posterior mean."""
    found = []
    for method in config.methods:
        found.append(accuracy_claim(arrays, method, "99 %", 0.99))
        found.append(kernel_claim("MNIST", arrays, method, "Figs. 4(a), 7: examples of one class are correlated"))
        found.append(posterior_mean_claim(arrays, method, "Figs. 4(a), 7: the pattern follows the classes"))
    if {LAPLACE, VI} <= set(config.methods):
        found.append(_negative_claim(arrays))
    return tuple(found)


def _negative_claim(arrays: Arrays) -> Claim:
    """VI's kernel has more negative correlations between classes; those within noise of 0 do not count."""
    other = arrays["labels"][:, None] != arrays["labels"][None, :]
    found = {method: correlations(arrays[f"{method}_kernel"])[other] for method in (VI, LAPLACE)}
    strong = {method: float((own < _NEGATIVE).mean()) for method, own in found.items()}
    signs, least = [f"{(own < 0).mean():.1%}" for own in found.values()], [own.min() for own in found.values()]
    bar = written(_NEGATIVE, "g")
    return Claim(
        "VI's kernel has more negative correlations between classes than Laplace's",
        f"App. C: many more (here: more below {bar})",
        f"below {bar}: {strong[VI]:.1%} versus {strong[LAPLACE]:.1%} of the pairs (below 0: {' versus '.join(signs)}; "
        f"minimum {' versus '.join(written(own, '.2f') for own in least)})",
        strong[VI] > strong[LAPLACE],
    )


_PAPER = ImagesConfig()
FIGURE = FigureKind(
    name="mnist",
    order=40,
    title="Figs. 4(a) and 7: LeNet-5 on MNIST",
    caption="Some training images of each digit. Kernel: tr J Jᵀ for Laplace, tr J Σ Jᵀ with the covariance Σ of q for "
    "VI. Posterior mean: J μ, which is not the network's output, because it lacks the term f − J w. δ refers to "
    "the summed loss, so it is N times the weight decay. The posterior is diagonal.",
    paper=_PAPER,
    smoke=_PAPER.smaller(),
    compute=image_figures.compute,
    claims=claims,
    draw=partial(image_figures.draw, name="MNIST"),
    maps=image_figures.maps,
    network="mnist",
)
