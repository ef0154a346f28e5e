"""Beyond the paper: a network of digits looks at clothes. Does its epistemic uncertainty tell them apart?"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score
from torch import Tensor

from dnn2gp.paper.datasets import load_images
from dnn2gp.paper.figure_result import FigureResult, check_preset, plain
from dnn2gp.paper.figures import mnist
from dnn2gp.paper.images import LAPLACE, VI, WORDS, ImagesConfig, Trained, load, pictures, predict, train
from dnn2gp.paper.images import kernel as kernel_of
from dnn2gp.plots.report.claim import Claim
from dnn2gp.support.progress import track

SCORES = {
    "epistemic": "epistemic variance of the label",
    "latent": "variance of f",
    "max_probability": "1 − the largest probability (plain network)",
    "entropy": "entropy of the probabilities (plain network)",
}
_CHUNK = 250


@dataclass(frozen=True)
class OodConfig:
    """The network of the experiment on MNIST, and how many test images of both sets it looks at."""

    network: ImagesConfig = field(default_factory=lambda: mnist.preset("paper"))
    count: int = 10_000
    """Of each set: all of them. (The first ones of MNIST are harder than the others.)"""
    kernel_count: int = 150
    """Of each set, for the kernel between them."""

    @property
    def seed(self) -> int:
        """Of the network."""
        return self.network.seed


def preset(name: str) -> OodConfig:
    """`paper`, or `smoke`: a little of it."""
    if check_preset(name) == "smoke":
        return OodConfig(mnist.preset("smoke"), count=40, kernel_count=12)
    return OodConfig()


def run(config: OodConfig, folder: Path) -> FigureResult:
    """Scores of both sets by every method, and the kernel between some images of each."""
    begin = time.perf_counter()
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
        trained = train(config.network, own_images, method, folder)
        arrays |= {f"{method}_{name}": values for name, values in _scores(trained, inputs).items()}
        arrays[f"{method}_kernel"] = kernel_of(trained, few)
        own = predict(trained, few)
        arrays[f"{method}_few_probabilities"] = own.mean.double().numpy()
        arrays[f"{method}_few_epistemic"] = own.epistemic.sum(1).double().numpy()
        arrays[f"{method}_few_aleatoric"] = own.aleatoric.sum(1).double().numpy()
    return FigureResult("ood", plain(config), arrays, claims(arrays, config), time.perf_counter() - begin)


def auroc(arrays: dict[str, np.ndarray], method: str, score: str) -> float:
    """The chance that an image from outside has a larger score than one of the digits."""
    return float(roc_auc_score(arrays["outside"], arrays[f"{method}_{score}"]))


def auroc_error(arrays: dict[str, np.ndarray], method: str, score: str) -> float:
    """Its standard error: √(var_i P(y > x_i) / m + var_j P(y_j > x) / n), DeLong et al. (1988)."""
    values, outside = arrays[f"{method}_{score}"], arrays["outside"] == 1
    known, other = values[~outside], values[outside]
    ranks = rankdata(values)
    above = 1 - (ranks[~outside] - rankdata(known)) / len(other)
    below = (ranks[outside] - rankdata(other)) / len(known)
    return float(np.sqrt(above.var(ddof=1) / len(known) + below.var(ddof=1) / len(other)))


def _scores(trained: Trained, inputs: Float[Tensor, "N C H W"]) -> dict[str, np.ndarray]:
    """Each larger where the network should be less sure."""
    found: dict[str, list[Tensor]] = {name: [] for name in SCORES}
    parts = inputs.split(_CHUNK)
    for part in track(parts, "uncertainty of digits and clothes", total=len(parts)):
        own = predict(trained, part)
        found["epistemic"].append(own.epistemic.sum(1))
        found["latent"].append(own.latent_covariance.diagonal(dim1=1, dim2=2).sum(1))
        logs = own.latent_mean.double().log_softmax(1)  # of probabilities that float32 takes for 1
        found["max_probability"].append(-torch.expm1(logs.amax(1)))
        found["entropy"].append(torch.special.entr(logs.exp()).sum(1))
    return {name: torch.cat(values).double().numpy() for name, values in found.items()}


def claims(arrays: dict[str, np.ndarray], config: OodConfig) -> tuple[Claim, ...]:
    """Which score tells the two sets apart."""
    found = []
    for method in config.network.methods:
        values = {score: (auroc(arrays, method, score), auroc_error(arrays, method, score)) for score in SCORES}
        words = ", ".join(f"{name.replace('_', ' ')} {area:.4f} ± {off:.4f}" for name, (area, off) in values.items())
        training = {LAPLACE: "Adam, diagonal Laplace", VI: "VOGN"}[method]
        found.append(
            Claim(
                f"{WORDS[method]} ({training}): which score tells clothes from digits",
                "not in the paper",
                f"AUROC (± 1 standard error): {words}",
                None,
            )
        )
    return tuple(found)
