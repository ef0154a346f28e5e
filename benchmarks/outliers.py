"""Which score finds outliers? MNIST versus Fashion-MNIST and the reverse, for two networks as people train them.

    python -m benchmarks.outliers                               # writes benchmarks/results/outliers.json
    python -m benchmarks.outliers --only LeNet-5 "seed 1"       # some networks
    python -m benchmarks.outliers --page docs/predictions.md    # also replaces the table of that page

A killed run resumes where it stopped: each network is saved once it is measured. DNN2GP_DATA names the folder of
the images; without it, they are downloaded. Posterior and score were chosen with seed 0; the table shows the others.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from benchmarks.calibration.measure import temperature_scaled
from benchmarks.calibration.networks import Split
from dnn2gp import CategoricalLikelihood, GaussianProcess, Predictive, convert
from dnn2gp.gp.automatic import Predictor
from dnn2gp.gp.calibrated import by_validation
from dnn2gp.inference import LinearisedMode
from dnn2gp.inference.averages import SoftmaxAverages, averages
from dnn2gp.inference.calibration import NONE
from dnn2gp.inference.metrics import accuracy, ece, nll
from dnn2gp.inference.novelty import novelty
from dnn2gp.paper.datasets import load_images
from dnn2gp.paper.networks import lenet5
from dnn2gp.support.files import write_text

_ROOT = Path(__file__).parents[1]
_BEGIN, _END = "<!-- outliers: begin -->", "<!-- outliers: end -->"
SETS = {"MNIST": "mnist", "Fashion-MNIST": "fashion_mnist"}
CHOSEN_ON, SEEDS = 0, (1, 2, 3)
"""The seed that posterior and score were chosen with, and those that are reported."""
NUM_VALIDATION, NUM_TEST, NUM_OTHER = 1000, 10_000, 1000
SCALES = (0.01, 0.1, 1.0)
"""The scales a of the covariance at which scores are compared."""
SCORES = ("entropy", "mutual_information", "expected_entropy")
_SCALED = "temperature scaling"
_CHUNK = 250
_BUDGET = 6e9
"""Of memory, whatever other processes use."""
_POINTS = 512
LIKELIHOOD = CategoricalLikelihood()
Pair = tuple[Tensor, Tensor]


def small_cnn(seed: int = 0) -> nn.Sequential:
    """Three convolutions of 8, 16 and 20 channels, each with pooling, and a linear layer: 5,958 weights."""

    def block(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(*block(1, 8), *block(8, 16), *block(16, 20), nn.Flatten(), nn.Linear(180, 10))


NETWORKS: dict[str, tuple[Callable[..., nn.Module], int]] = {"small CNN": (small_cnn, 2000), "LeNet-5": (lenet5, 1000)}
"""Networks, and the number of images that they are trained on."""


@dataclass(frozen=True)
class Case:
    """A network, the set that it is trained on, the other set, and the seed of images, weights and batches."""

    network: str
    inside: str
    outside: str
    seed: int

    @property
    def name(self) -> str:
        """A name for files and tables."""
        return f"{self.network}, {self.inside} vs {self.outside}, seed {self.seed}"


CASES = [
    Case(network, inside, outside, seed)
    for seed in (CHOSEN_ON, *SEEDS)
    for network in NETWORKS
    for inside, outside in (tuple(SETS), tuple(reversed(SETS)))
]


@dataclass(frozen=True, eq=False)
class Data:
    """Random images: to train, to stop early, to test, and of the other set."""

    train: Pair
    validation: Pair
    test: Pair
    other: Tensor

    @property
    def split(self) -> Split:
        """Without the other set."""
        return Split(self.train, self.validation, self.test, 10)

    @staticmethod
    def of(case: Case) -> Data:
        """Images that depend on the seed alone."""
        own, other = load_images(SETS[case.inside]), load_images(SETS[case.outside])
        random, count = np.random.default_rng(case.seed), NETWORKS[case.network][1]
        train, test, foreign = (
            random.permutation(len(each)) for each in (own.train_labels, own.test_labels, other.test_labels)
        )
        held = train[count : count + NUM_VALIDATION]
        return Data(
            _pair(own.train_images, own.train_labels, train[:count]),
            _pair(own.train_images, own.train_labels, held),
            _pair(own.test_images, own.test_labels, test[:NUM_TEST]),
            _pair(other.test_images, other.test_labels, foreign[:NUM_OTHER])[0],
        )


def _pair(images: Tensor, labels: Tensor, index: np.ndarray) -> Pair:
    return images[index].float().reshape(-1, 1, 28, 28), labels[index].long()


def train(network: nn.Module, data: Data, seed: int, epochs: int = 60, patience: int = 8) -> nn.Module:
    """Adam with mini-batches of 32, stopped early on the validation set."""
    (x, y), (held, labels) = data.train, data.validation
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    kept, best, waited = network.state_dict(), float("inf"), 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                value = nn.functional.cross_entropy(network(held), labels).item()
            waited += 1
            if value < best:
                kept, best, waited = {k: v.clone() for k, v in network.state_dict().items()}, value, 0
            if waited > patience:
                break
    network.load_state_dict(kept)
    return network.eval()


@dataclass(frozen=True, eq=False)
class Latents:
    """f of some images: the network itself, the mode of the linearised network, and J Σ̃ Jᵀ and J V Jᵀ."""

    network: Tensor
    mode: Tensor
    covariance: Tensor
    prior: Tensor

    @staticmethod
    def of(gp: GaussianProcess, network: nn.Module, images: Tensor) -> Latents:
        """In chunks, from one pass over the images."""
        moved = gp.model.expansion.moved
        assert moved is not None
        exact = replace(gp, inference=gp.inference.recentred(moved), calibration=NONE)
        parts = [exact.predict(part) for part in images.split(_CHUNK)]
        mode, covariance = (
            torch.cat([getattr(part, name).detach() for part in parts]) for name in ("latent_mean", "latent_covariance")
        )
        with torch.no_grad():
            factors = (gp.features.outputs_and_factors(part)[1] for part in images.split(_CHUNK))
            prior = torch.cat([gp.prior.precision.marginal(each) for each in factors])
            return Latents(network(images), mode, covariance, prior.double())

    def predictive(self, choice: Predictor) -> Predictive:
        """What a GP with this mean and calibration predicts."""
        centre = choice.posterior.model.centre
        mean = self.mode if centre is not None and bool(centre.any()) else self.network
        zero = torch.zeros_like(mean)
        return Predictive(LIKELIHOOD, (10,), mean, zero, self.covariance, calibration=choice.calibration)

    def novelty(self) -> Tensor:
        """That of `gp.novelty`, around the network."""
        return novelty(LIKELIHOOD, self.network, self.covariance, self.prior)

    def averages(self, around: str) -> SoftmaxAverages:
        """Averages of the exact posterior around the network or the mode."""
        found = averages(LIKELIHOOD, getattr(self, around), self.covariance, _POINTS)
        assert isinstance(found, SoftmaxAverages)
        return found


def measured(case: Case) -> dict:
    """One row of the results."""
    data = Data.of(case)
    network = train(NETWORKS[case.network][0](seed=case.seed), data, case.seed)
    begin = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp = convert(network, data.train, LIKELIHOOD, memory_budget=_BUDGET)
    seconds = perf_counter() - begin
    choice = Predictor(gp.inference, gp.calibration)
    moved = gp.model.expansion.moved
    assert moved is not None
    assert gp.tuning is not None
    # The same as convert(..., validation=data.validation), without a second factorisation.
    held = by_validation(gp.inference.recentred(moved), LIKELIHOOD, data.validation, gp.network)
    inside, outside = (Latents.of(gp, network, images) for images in (data.test[0], data.other))
    ways = {
        "network": inside.network.double().softmax(1),
        _SCALED: temperature_scaled(network, data.split),
        "GP": inside.predictive(choice).probabilities,
        "GP, validation": inside.predictive(held).probabilities,
    }
    return {
        **asdict(case),
        "num_weights": gp.network.num_weights,
        "num_train": len(data.train[1]),
        "seconds": seconds,
        "prior_precision": gp.tuning.best["prior_precision"],
        "mean": {"GP": gp.centre.name, "GP, validation": _mean_name(held)},
        "calibration": {"GP": asdict(gp.calibration), "GP, validation": asdict(held.calibration)},
        "predictions": {way: _quality(p, data.test[1]) for way, p in ways.items()},
        "auroc": {
            **_of_network(inside, outside),
            **_of_posteriors(inside, outside),
            **{
                score: _auroc(*(getattr(each.predictive(choice), score) for each in (inside, outside)))
                for score in SCORES
            },
            "outlier score": _auroc(
                *(each.predictive(choice).entropy.double() * each.novelty() for each in (inside, outside))
            ),
        },
    }


def complete(row: dict, case: Case) -> bool:
    """Add temperature scaling to a row that was measured without it; whether it was missing."""
    if _SCALED in row["predictions"]:
        return False
    data = Data.of(case)
    network = train(NETWORKS[case.network][0](seed=case.seed), data, case.seed)
    row["predictions"][_SCALED] = _quality(temperature_scaled(network, data.split), data.test[1])
    return True


def _mean_name(choice: Predictor) -> str:
    centre = choice.posterior.model.centre
    return LinearisedMode().name if centre is not None and bool(centre.any()) else "network output"


def _quality(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, NLL, ECE, and the ECE that perfectly calibrated probabilities have with this many images."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.multinomial(probabilities.double(), 1, generator=generator).squeeze(1) for _ in range(20)]
    return {
        "accuracy": accuracy(probabilities, labels),
        "nll": nll(probabilities, labels),
        "ece": ece(probabilities, labels),
        "ece_noise": fmean(ece(probabilities, own) for own in drawn),
    }


def _of_network(inside: Latents, outside: Latents) -> dict[str, float]:
    """Scores of the plain network, the variance of f, and the share of its prior variance that the data left."""

    def entropy(own: Latents) -> Tensor:
        return torch.special.entr(own.network.double().softmax(1)).sum(1)

    def variance(own: Latents) -> Tensor:
        return own.covariance.diagonal(dim1=1, dim2=2).sum(1)

    return {
        "network entropy": _auroc(entropy(inside), entropy(outside)),
        "variance": _auroc(variance(inside), variance(outside)),
        "novelty": _auroc(inside.novelty(), outside.novelty()),
    }


def _of_posteriors(inside: Latents, outside: Latents) -> dict[str, float]:
    """Scores of f ~ N(m, aV) around the network, for several a."""
    found = {}
    own = inside.averages("network"), outside.averages("network")
    for scale in SCALES:
        (h_in, e_in), (h_out, e_out) = (each.scaled(scale).entropies() for each in own)
        values = (h_in, h_out), (h_in - e_in, h_out - e_out), (e_in, e_out)
        for score, both in zip(SCORES, values, strict=True):
            found[f"{score}, a = {scale:g}"] = _auroc(*both)
    return found


def _auroc(inside: Tensor, outside: Tensor) -> float:
    """The probability that an image of the other set has the larger score."""
    labels = np.repeat([0, 1], [len(inside), len(outside)])
    return float(roc_auc_score(labels, torch.cat([inside, outside]).double().numpy()))


def page(rows: Sequence[dict]) -> str:
    """A line per network and pair: means over the seeds, ± their standard errors."""
    head = (
        "| trained on; outliers | network | images | AUROC: entropy of the network | **`gp.outlier_score`** | "
        "`gp.novelty` | `mutual_information` | `entropy` | variance of f | ECE: network | temperature scaling "
        "(validation) | **GP** | **GP with validation** | perfectly calibrated |"
    )
    lines = [head, "|---|---|" + "---:|" * 12]
    for case in CASES:
        own = [row for row in rows if _group(row) == _group(asdict(case)) and row["seed"] in SEEDS]
        if case.seed == SEEDS[0] and own:
            lines.append(_line(own))
    return "\n".join(lines)


def _group(row: dict) -> tuple[str, ...]:
    return row["network"], row["inside"], row["outside"]


def _line(rows: Sequence[dict]) -> str:
    scores = "network entropy", "outlier score", "novelty", "mutual_information", "entropy", "variance"
    cells = [_mean([row["auroc"][score] for row in rows]) for score in scores]
    ways = "network", _SCALED, "GP", "GP, validation"
    cells += [_mean([row["predictions"][way]["ece"] for row in rows]) for way in ways]
    cells.append(_mean([row["predictions"]["GP, validation"]["ece_noise"] for row in rows]))
    first = rows[0]
    names = f"{first['inside']}; {first['outside']} | {first['network']} | {first['num_train']:,}"
    return f"| {names} | {' | '.join(cells)} |"


def _mean(values: Sequence[float]) -> str:
    error = f" ± {stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{error}"


def main() -> None:
    """Measure what is missing, and write the table."""
    options = _parse()
    torch.set_num_threads(options.threads)
    rows: dict[str, dict] = json.loads(options.out.read_text()) if options.out.exists() else {}
    chosen = [case for case in CASES if all(word in case.name for word in options.only)]
    for number, case in enumerate(chosen, 1):
        missing = case.name not in rows
        if missing:
            rows[case.name] = measured(case)
        if complete(rows[case.name], case) or missing:
            write_text(options.out, json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False))
            print(f"{number}/{len(chosen)} {case.name}", flush=True)
    text = page([rows[case.name] for case in CASES if case.name in rows])
    print(text)
    if options.page is not None:
        before, rest = options.page.read_text().split(_BEGIN)
        write_text(options.page, f"{before}{_BEGIN}\n{text}\n{_END}{rest.split(_END)[1]}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words that the names of the runs must contain")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results" / "outliers.json")
    parser.add_argument("--page", type=Path, help="the page whose table is replaced, e.g. docs/predictions.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
