"""Beyond the paper: a network trained on digits is shown clothes. Does its epistemic uncertainty tell them apart?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from dnn2gp.paper.datasets import load_images
from dnn2gp.paper.figure import Arrays, Drawings, FigureKind, FigureResult, Findings, Workspace
from dnn2gp.paper.image_figures import kernel_map, methods_in
from dnn2gp.paper.image_networks import LAPLACE, VI, WORDS, ImagesConfig, NetworkGP, load, pictures, trained_gp
from dnn2gp.plots.matrices import kernel_matrix
from dnn2gp.plots.outliers import Roc, outliers
from dnn2gp.plots.report import Examples, InteractiveMap
from dnn2gp.plots.report.section import Claim
from dnn2gp.support.progress import track

SCORES = {
    "mutual_information": "mutual information of class and f",
    "average_entropy": "entropy of the averaged probabilities",
    "epistemic": "epistemic variance of the label",
    "latent": "variance of f",
    "max_probability": "1 − largest probability (plain network)",
    "entropy": "entropy of the probabilities (plain network)",
}
_CHUNK = 250


@dataclass(frozen=True)
class OodConfig:
    """The network of the MNIST figure, and the number of test images of each set."""

    network: ImagesConfig
    count: int = 10_000
    """Test images of each set; by default all, because the first ones of MNIST are harder than the rest."""
    kernel_count: int = 150
    """Images of each set in the kernel between them."""


def compute(config: OodConfig, workspace: Workspace) -> Findings:
    """The scores of both sets by every method, and the kernel between some images of each."""
    own_images = load(config.network)
    digits, clothes = load(replace(config.network, num_test=None)), load_images("fashion_mnist")
    sets = [own.test_images[: config.count] for own in (digits, clothes)]
    inputs, outside = torch.cat(sets), np.repeat([0, 1], [len(own) for own in sets])
    few = torch.cat([own[: config.kernel_count] for own in sets])
    arrays = {
        "outside": outside,
        "images": pictures(config.network, few),
        "few_outside": np.repeat([0, 1], [min(len(own), config.kernel_count) for own in sets]),
        "digits": digits.test_labels[: config.kernel_count].numpy(),
        "clothes": clothes.test_labels[: config.kernel_count].numpy(),
        "digit_names": np.array(digits.classes),
        "clothes_names": np.array(clothes.classes),
    }
    for method in config.network.methods:
        gp = trained_gp(config.network, own_images, method, workspace)
        own = gp.predict(few)
        found = {
            **_scores(gp, inputs),
            "kernel": gp.kernel.trace(few),
            "few_probabilities": own.mean,
            "few_epistemic": own.epistemic.sum(1),
            "few_aleatoric": own.aleatoric.sum(1),
        }
        arrays |= {f"{method}_{name}": values.detach().double().numpy() for name, values in found.items()}
    return Findings(arrays)


def _scores(gp: NetworkGP, inputs: Float[Tensor, "N C H W"]) -> dict[str, Tensor]:
    """Each score is larger where the network should be less certain."""
    found: dict[str, list[Tensor]] = {name: [] for name in SCORES}
    parts = inputs.split(_CHUNK)
    for part in track(parts, "uncertainty of digits and clothes", total=len(parts)):
        own = gp.predict(part)
        found["mutual_information"].append(own.mutual_information)
        found["average_entropy"].append(own.entropy)
        found["epistemic"].append(own.epistemic.sum(1))
        found["latent"].append(own.latent_covariance.diagonal(dim1=1, dim2=2).sum(1))
        logs = own.latent_mean.double().log_softmax(1)  # float32 rounds large probabilities to 1
        found["max_probability"].append(-torch.expm1(logs.amax(1)))
        found["entropy"].append(torch.special.entr(logs.exp()).sum(1))
    return {name: torch.cat(values) for name, values in found.items()}


def auroc(arrays: Arrays, method: str, score: str) -> float:
    """The probability that an image of clothes has a larger score than an image of a digit."""
    return float(roc_auc_score(arrays["outside"], arrays[f"{method}_{score}"]))


def auroc_error(arrays: Arrays, method: str, score: str) -> float:
    """Its standard error: √(var_i P(y > x_i) / m + var_j P(y_j > x) / n), DeLong et al. (1988)."""
    values, outside = arrays[f"{method}_{score}"], arrays["outside"] == 1
    known, other = values[~outside], values[outside]
    ranks = rankdata(values)
    above = 1 - (ranks[~outside] - rankdata(known)) / len(other)
    below = (ranks[outside] - rankdata(other)) / len(known)
    return float(np.sqrt(above.var(ddof=1) / len(known) + below.var(ddof=1) / len(other)))


def claims(arrays: Arrays, config: OodConfig) -> tuple[Claim, ...]:
    """Which score separates the two sets."""
    found = []
    for method in config.network.methods:
        values = {score: (auroc(arrays, method, score), auroc_error(arrays, method, score)) for score in SCORES}
        words = ", ".join(f"{name.replace('_', ' ')} {area:.4f} ± {off:.4f}" for name, (area, off) in values.items())
        training = {LAPLACE: "Adam, diagonal Laplace", VI: "VOGN"}[method]
        found.append(
            Claim(
                f"{WORDS[method]} ({training}): which score separates clothes from digits",
                "not in the paper",
                f"AUROC (± 1 standard error): {words}",
                None,
            )
        )
    return tuple(found)


def draw(result: FigureResult) -> Drawings:
    """The scores and the kernel of each method."""
    own = result.arrays
    drawn: Drawings = {}
    names, first = ("digits", "clothes"), next(iter(SCORES))
    order = np.lexsort([np.concatenate([own["digits"], own["clothes"]]), own["few_outside"]])  # by class within a set
    for method in methods_in(own):
        curves = [Roc(words, *_roc(own, method, score)) for score, words in SCORES.items()]
        title = f"{WORDS[method]}: a network trained on digits is shown clothes"
        drawn[f"{method}-scores"] = outliers(
            own[f"{method}_{first}"], own["outside"], curves, names, SCORES[first], title
        )
        kernel = own[f"{method}_kernel"][np.ix_(order, order)]
        drawn[f"{method}-kernel"] = kernel_matrix(
            kernel, own["few_outside"][order], names, of=f"{WORDS[method]}: digits and clothes"
        )
    return drawn


def _roc(own: Arrays, method: str, score: str) -> tuple[np.ndarray, np.ndarray, float]:
    known, other, _ = roc_curve(own["outside"], own[f"{method}_{score}"])
    return known, other, auroc(own, method, score)


def maps(result: FigureResult) -> tuple[InteractiveMap, ...]:
    """The kernel between digits and clothes, by each method."""
    own, found = result.arrays, []
    names = tuple(map(str, own["digit_names"])), tuple(map(str, own["clothes_names"]))
    for method in methods_in(own):
        probabilities = own[f"{method}_few_probabilities"]
        examples = Examples(
            images=own["images"],
            labels=np.concatenate([own["digits"], own["clothes"] + len(names[0])]),
            classes=(*names[0], *names[1]),
            predictions=probabilities.argmax(1),
            probabilities=probabilities.max(1),
            epistemic=own[f"{method}_few_epistemic"],
            aleatoric=own[f"{method}_few_aleatoric"],
        )
        title = f"Kernel between digits and clothes, {WORDS[method]}"
        found.append(kernel_map(title, own[f"{method}_kernel"], examples))
    return tuple(found)


FIGURE = FigureKind(
    name="ood",
    order=110,
    title="Beyond the paper: a network trained on digits is shown clothes",
    caption="LeNet-5 trained on MNIST is evaluated on test images of MNIST and Fashion-MNIST. AUROC: the probability "
    "that an image of clothes has the larger score. Kernels are ordered by class within each set.",
    paper=OodConfig(ImagesConfig()),
    smoke=OodConfig(ImagesConfig().smaller(), count=40, kernel_count=12),
    compute=compute,
    claims=claims,
    draw=draw,
    maps=maps,
    network="mnist",
)
