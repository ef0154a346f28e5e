"""The demo: train, convert, predict, compare, draw and save."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from dnn2gp import plots
from dnn2gp.apps.demo.config import DemoConfig
from dnn2gp.apps.demo.results import DemoResult, Scores, report
from dnn2gp.apps.demo.training import NUM_CLASSES, Digits, build_network, load_data, train
from dnn2gp.gp.convert import convert
from dnn2gp.gp.diagnose import diagnose
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.storage import save
from dnn2gp.inference import costs
from dnn2gp.inference.metrics import accuracy, ece, nll
from dnn2gp.inference.predictive import Predictive
from dnn2gp.likelihoods import CategoricalLikelihood
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
            data = (digits.train_images, digits.train_labels)
            gp = convert(network, data, CategoricalLikelihood(), config.prior_precision)
        with clock("prediction of the test digits"):
            prediction = gp.predict(digits.test_images)
            rotated = gp.predict(digits.test_images.rot90(1, dims=(2, 3)))
            scores = compare(prediction, rotated, digits.test_labels, config.num_samples, generator)
        with clock("log evidence"):
            evidence = gp.evidence()
        with clock("diagnosis"):
            diagnosis = diagnose(gp, details=True, generator=generator)
        with clock("pictures and files"):
            files = write_results(gp, prediction, digits, config)
    result = DemoResult(
        num_weights=gp.network.num_weights,
        scores=scores,
        evidence=evidence,
        diagnosis=diagnosis,
        space=gp.inference.name,
        costs=costs(gp.model),
        seconds=clock.seconds,
        files=files,
    )
    console.print(report(result, config))
    return result


def compare(
    prediction: Predictive,
    rotated: Predictive,
    labels: Int[Tensor, " M"],
    num_samples: int,
    generator: torch.Generator,
) -> dict[str, Scores]:
    """The scores of the network and of three ways to predict with the GP."""
    seed = int(torch.randint(2**31, (), generator=generator))

    def ways(predictive: Predictive) -> dict[str, Float[Tensor, "M K"]]:
        draws = torch.Generator().manual_seed(seed)
        return {
            "network (softmax)": predictive.outputs.softmax(-1),
            "GP, delta method": predictive.delta(),
            "GP, probit": predictive.probit(),
            "GP, Monte Carlo": predictive.monte_carlo(num_samples, generator=draws),
        }

    elsewhere = ways(rotated)
    return {
        name: Scores(
            accuracy=accuracy(p, labels),
            nll=nll(p, labels),
            ece=ece(p, labels),
            confidence=p.amax(-1).mean().item(),
            confidence_rotated=elsewhere[name].amax(-1).mean().item(),
        )
        for name, p in ways(prediction).items()
    }


def write_results(gp: GaussianProcess, prediction: Predictive, digits: Digits, config: DemoConfig) -> tuple[Path, ...]:
    """Write the pictures and the GP, each file completely or not at all."""
    pictures = draw(gp, prediction, digits, config.per_class)
    for name, figure in track(pictures.items(), "saving pictures"):
        write_whole(config.out / name, figure.savefig)
    save(gp, config.out / "gp.safetensors")
    return tuple(config.out / name for name in (*pictures, "gp.safetensors"))


def draw(gp: GaussianProcess, prediction: Predictive, digits: Digits, per_class: int) -> dict[str, Figure]:
    """File name → picture of the test digits; matrices show `per_class` examples of each class."""
    few = some_of_each(digits.test_labels, per_class)
    images, labels = digits.test_images, digits.test_labels.numpy()
    probabilities = prediction.monte_carlo(generator=torch.Generator().manual_seed(0))
    confidence, predicted = probabilities.max(-1)
    return {
        "kernel.png": plots.kernel_matrix(gp.kernel.trace(images[few]).numpy(), labels[few]),
        "posterior_mean.png": plots.posterior_mean(gp.mean(images[few]).numpy(), labels[few]),
        "uncertainty_maps.png": plots.uncertainty_maps(
            prediction.epistemic[few].numpy(), prediction.aleatoric[few].numpy(), labels[few]
        ),
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
