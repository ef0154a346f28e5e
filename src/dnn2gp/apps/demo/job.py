"""The demo: train, convert, predict, compare, draw and save."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from rich.console import Console
from sklearn.metrics import roc_auc_score
from torch import Tensor

from dnn2gp import plots
from dnn2gp.apps.demo.config import DemoConfig
from dnn2gp.apps.demo.foreign import photographs, turned
from dnn2gp.apps.demo.results import DemoResult, Foreign, Scores, report
from dnn2gp.apps.demo.training import NUM_CLASSES, Digits, build_network, load_data, train
from dnn2gp.gp.convert import convert
from dnn2gp.gp.diagnose import diagnose
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.storage import save
from dnn2gp.inference.metrics import accuracy, ece, nll
from dnn2gp.inference.predictive import Predictive
from dnn2gp.likelihoods import CategoricalLikelihood
from dnn2gp.plots.familiarity import ImageSet, familiarity
from dnn2gp.support.files import prepare_folder, write_whole
from dnn2gp.support.progress import show_progress, track


class Stopwatch:
    """The time that each named part takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Time the block."""
        start = time.perf_counter()
        yield
        self.seconds[part] = time.perf_counter() - start


def run(config: DemoConfig, console: Console | None = None) -> DemoResult:
    """Run the demo and print its results. The global random state is left unchanged."""
    config.check()
    console = console or Console()
    prepare_folder(config.out)
    generator = torch.Generator().manual_seed(config.seed)
    clock = Stopwatch()
    with show_progress():
        digits = load_data(config.num_train, generator)
        network = build_network(config.channels, config.seed)
        with clock("training"):
            train(network, digits.train_images, digits.train_labels, config, generator)
        with clock("conversion to a GP"):
            gp = convert(network, (digits.train_images, digits.train_labels), CategoricalLikelihood())
        with clock("predictions"):
            predictions = predict(gp, digits, generator)
            known = predictions["digits"]
            scores = compare(known, digits.test_labels)
            threshold = gp.outlier_threshold()
            foreign = {name: shown(own, threshold, known) for name, own in predictions.items()}
        with clock("diagnosis"):
            diagnosis = diagnose(gp)
        with clock("pictures and files"):
            files = write_results(gp, predictions, threshold, digits, config)
    result = DemoResult(gp, scores, foreign, gp.evidence(), diagnosis, clock.seconds, files)
    console.print(report(result, config))
    return result


@final
@dataclass(frozen=True, eq=False)
class Predicted:
    """Images, and what the network and its GP say about them."""

    images: Float[Tensor, "M 1 8 8"]
    network: Float[Tensor, "M K"]
    """The probabilities of the network itself."""
    gp: Predictive
    doubt: Float[Tensor, " M"]
    """The outlier score of the GP."""

    @property
    def entropy(self) -> Float[Tensor, " M"]:
        """That of the network's probabilities, in nats."""
        return torch.special.entr(self.network).sum(1)

    def image_set(self, name: str) -> ImageSet:
        """What the picture shows of them."""
        confidence, predicted = self.network.max(1)
        own = (self.images.squeeze(1), confidence, predicted, self.doubt)
        return ImageSet(name, *(each.numpy() for each in own))


def predict(gp: GaussianProcess, digits: Digits, generator: torch.Generator) -> dict[str, Predicted]:
    """The test digits, the same ones turned, and photographs."""
    images = digits.test_images
    sets = {
        "digits": images,
        "turned digits": turned(images),
        "photographs": photographs(len(images), generator).to(images),
    }
    return {
        name: Predicted(own, gp.features.outputs(own).softmax(-1), gp.predict(own), gp.outlier_score(own))
        for name, own in sets.items()
    }


def compare(known: Predicted, labels: Int[Tensor, " M"]) -> dict[str, Scores]:
    """The scores of the network and of the GP on the test digits."""
    ways = {"network": known.network, "GP": known.gp.probabilities}
    return {name: Scores(accuracy(p, labels), nll(p, labels), ece(p, labels)) for name, p in ways.items()}


def shown(own: Predicted, threshold: float, known: Predicted) -> Foreign:
    """How sure network and GP are of one set of images, and how well they tell it from the test digits."""
    return Foreign(
        confident=(own.network.amax(1) > 0.9).double().mean().item(),
        unfamiliar=(own.doubt > threshold).double().mean().item(),
        network_auroc=_auroc(known.entropy, own.entropy),
        gp_auroc=_auroc(known.doubt, own.doubt),
    )


def _auroc(familiar: Float[Tensor, " M"], other: Float[Tensor, " M"]) -> float:
    outside = [0] * len(familiar) + [1] * len(other)
    return float(roc_auc_score(outside, torch.cat([familiar, other]).numpy()))


def write_results(
    gp: GaussianProcess,
    predictions: dict[str, Predicted],
    threshold: float,
    digits: Digits,
    config: DemoConfig,
) -> tuple[Path, ...]:
    """Write the pictures and the GP, each file completely or not at all."""
    sets = [own.image_set(name) for name, own in predictions.items()]
    pictures = {"familiarity.png": familiarity(sets, threshold)}
    pictures |= draw(gp, predictions["digits"].gp, digits, config.per_class)
    for name, figure in track(pictures.items(), "saving pictures"):
        write_whole(config.out / name, figure.savefig)
    save(gp, config.out / "gp.safetensors")
    return tuple(config.out / name for name in (*pictures, "gp.safetensors"))


def draw(gp: GaussianProcess, prediction: Predictive, digits: Digits, per_class: int) -> dict[str, Figure]:
    """File name → picture of the test digits; matrices show `per_class` examples of each class."""
    few = some_of_each(digits.test_labels, per_class)
    images, labels = digits.test_images, digits.test_labels.numpy()
    confidence, predicted = prediction.probabilities.max(-1)
    return {
        "kernel.png": plots.kernel_matrix(gp.kernel.trace(images[few]).numpy(), labels[few]),
        "posterior_mean.png": plots.posterior_mean(gp.mean(images[few]).numpy(), labels[few]),
        "uncertainty.png": plots.uncertainty(
            prediction.epistemic.sum(-1).numpy(),
            prediction.aleatoric.sum(-1).numpy(),
            images.squeeze(1).numpy(),
            labels,
            predicted.numpy(),
            confidence.numpy(),
        ),
    }


def some_of_each(labels: Int[Tensor, " M"], per_class: int) -> Int[Tensor, " m"]:
    """The indices of the first `per_class` examples of each class."""
    return torch.cat([(labels == c).nonzero().flatten()[:per_class] for c in range(NUM_CLASSES)])
