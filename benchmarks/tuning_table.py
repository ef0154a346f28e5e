"""δ and σ by the evidence, by 5-fold cross-validation, or fixed at 1: test log-likelihood and time, on five problems.

    python -m benchmarks.tuning_table            # writes benchmarks/results/tuning.json and the table in docs/tuning.md
    python -m benchmarks.tuning_table --resume   # continues after an interruption

All three train the same network (one hidden layer, tanh) from the same four starts on standardised data, in one thread
pool, by batches of Gauss-Newton steps that end by the same rule. Cross-validation looks at 9 values of δσ², which is
what the weights depend on, trains all folds and starts of all of them as one batch, and takes for each the σ that is
best on the folds left out, in closed form.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import numpy as np
import torch
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman3
from torch import Tensor, nn

from dnn2gp import GaussianLikelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.paper.datasets import wine_splits
from dnn2gp.support.files import write_text
from dnn2gp.tune.ensemble import Ensemble, initial_weights
from dnn2gp.tune.minimise import minimise
from dnn2gp.tune.restarts import fit_restarts

WIDTH, STARTS, FOLDS, STEPS = 20, 4, 5, 60
GAIN = 0.05 * 0.25
"""What a step must gain for a training to go on: as in `fit_restarts`, 0.05 nats at a noise of half the spread."""
FIRST = 105
"""The first seed: the search of `fit_restarts` was chosen on others."""
PRODUCTS = torch.logspace(-2, 2, 9, dtype=torch.float64)
"""The values of δσ² that cross-validation looks at."""
ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


@dataclass(frozen=True)
class Split:
    """A training and a test set, standardised on the first."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @staticmethod
    def of(x: np.ndarray, y: np.ndarray, num_train: int, seed: int) -> Split:
        """The first rows of a random order to train, the others to test."""
        order = np.random.default_rng(seed).permutation(len(y))
        x, y = x[order], y[order, None]
        mean, scale = x[:num_train].mean(0), x[:num_train].std(0)
        centre, unit = y[:num_train].mean(), y[:num_train].std()
        own = [torch.from_numpy(part) for part in ((x - mean) / scale, (y - centre) / unit)]
        return Split(own[0][:num_train], own[1][:num_train], own[0][num_train:], own[1][num_train:])


@dataclass(frozen=True)
class Score:
    """What one way of choosing gave on one split."""

    log_likelihood: float
    seconds: float
    delta: float
    sigma: float


Scores: TypeAlias = "dict[str, dict[str, list[Score]]]"
"""Of each problem and way, one a split."""


def diabetes(seed: int) -> Split:
    x, y = load_diabetes(return_X_y=True)
    return Split.of(x, y, 353, seed)


def wine(seed: int) -> Split:
    seed %= 20
    draws = wine_splits(seed + 1)
    own = draws.train_inputs, draws.train_targets, draws.test_inputs, draws.test_targets
    return Split(*(each[seed] for each in own))


def sine(seed: int) -> Split:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-3, 3, size=1100)
    return Split.of(x[:, None], np.sin(2 * x) + 0.3 * generator.normal(size=1100), 100, seed)


def friedman1(seed: int) -> Split:
    x, y = make_friedman1(1200, n_features=10, noise=1.0, random_state=seed)
    return Split.of(x, y, 200, seed)


def friedman3(seed: int) -> Split:
    x, y = make_friedman3(1200, noise=0.1, random_state=seed)
    return Split.of(x, y, 200, seed)


PROBLEMS: dict[str, Callable[[int], Split]] = {
    "diabetes": diabetes,
    "wine": wine,
    "sine": sine,
    "friedman1": friedman1,
    "friedman3": friedman3,
}


def build(split: Split) -> Callable[[], nn.Module]:
    return lambda: mlp(split.x.shape[1], 1, width=WIDTH).double()


def by_evidence(split: Split) -> Score:
    begin = time.perf_counter()
    found = fit_restarts(build(split), split.x, split.y, GaussianLikelihood(), restarts=STARTS)
    sigma = found.likelihood.sigma.item()
    return score_of(split, found.prior_precision, sigma, begin, found.network)


def by_cross_validation(split: Split) -> Score:
    """The δσ² and σ of the largest log-likelihood on the folds left out, averaged over starts."""
    begin = time.perf_counter()
    folds = torch.arange(len(split.y)) % FOLDS
    size = int((folds != 0).sum())
    inner = [(folds != fold).nonzero()[:size, 0] for fold in range(FOLDS)]
    outer = [(folds == fold).nonzero()[:, 0] for fold in range(FOLDS)]
    starts = initial_weights(build(split), range(STARTS))
    members = [(product, fold, start) for product in PRODUCTS for fold in range(FOLDS) for start in range(STARTS)]
    x, y = (torch.stack([part[inner[fold]] for _, fold, _ in members]) for part in (split.x, split.y))
    weights = torch.stack([starts[start] for _, _, start in members])
    ensemble = Ensemble(
        build(split)(), x, y, GaussianLikelihood(1.0), torch.stack([product for product, _, _ in members])
    )
    found = minimise(ensemble, weights, gain=torch.full((len(weights),), GAIN).double(), max_iterations=STEPS)
    curvature = ensemble.curvature(found.weights)
    values: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for position, (product, fold, _) in enumerate(members):
        own, at = ensemble.take(torch.tensor([position])), slice(position, position + 1)
        left, few = split.x[outer[fold]][None], _at(curvature, at)
        gaps = (own.outputs(found.weights[at], left)[0] - split.y[outer[fold]]).square()
        spread = 1 + own.variances(found.weights[at], few, left)[0]
        values.setdefault(PRODUCTS.tolist().index(product.item()), []).append((gaps.flatten(), spread.flatten()))
    best = max(values, key=lambda place: _left_out(values[place])[0])
    sigma = _left_out(values[best])[1]
    return score_of(split, PRODUCTS[best].item() / sigma**2, sigma, begin)


def fixed(split: Split) -> Score:
    return score_of(split, 1.0, 1.0, time.perf_counter())


def _at(curvature, part: slice):
    return type(curvature)(curvature.matrix[part], curvature.gradient[part], curvature.relative_gradient[part])


def _left_out(pairs: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """(mean log-likelihood, σ): log N(gap | 0, σ²(1 + v)) with the σ² that maximises it, the mean of gap²/(1 + v)."""
    gaps, spread = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    variance = (gaps / spread).mean()
    value = -0.5 * (1 + torch.log(2 * torch.pi * variance) + spread.log().mean())
    return value.item(), variance.sqrt().item()


def score_of(split: Split, delta: float, sigma: float, begin: float, network: nn.Module | None = None) -> Score:
    """Train on the whole training set with δ and σ, unless that is done already, and evaluate on the test set."""
    product = torch.tensor([delta * sigma**2], dtype=torch.float64)
    if network is None:
        starts = initial_weights(build(split), range(STARTS))
    else:
        starts = torch.cat([weight.detach().flatten() for weight in network.parameters()])[None]
    ensemble = Ensemble(
        build(split)(), split.x[None], split.y[None], GaussianLikelihood(1.0), product.expand(len(starts))
    )
    gain = torch.full((len(starts),), GAIN, dtype=torch.float64)
    found = minimise(ensemble, starts, gain=gain, max_iterations=STEPS if network is None else 0)
    best = int(found.loss.argmin())
    own, weights = ensemble.take(torch.tensor([best])), found.weights[best : best + 1]
    curvature = own.curvature(weights)
    seconds = time.perf_counter() - begin
    gaps = own.outputs(weights, split.x_test[None])[0] - split.y_test
    variance = sigma**2 * (1 + own.variances(weights, curvature, split.x_test[None])[0])
    value = -0.5 * (gaps.square() / variance + torch.log(2 * torch.pi * variance))
    return Score(value.mean().item(), seconds, delta, sigma)


WAYS: dict[str, Callable[[Split], Score]] = {
    "evidence": by_evidence,
    "cross-validation": by_cross_validation,
    "fixed at 1": fixed,
}


def measure(repeats: int, record: Path, scores: Scores) -> Scores:
    """Measure all methods in turn on every split; a split is written to disk once all methods are measured on it."""
    for seed, name in [(seed, name) for seed in range(repeats) for name in PROBLEMS]:
        own = scores.setdefault(name, {way: [] for way in WAYS})
        if len(own["fixed at 1"]) > seed:
            continue
        split = PROBLEMS[name](FIRST + seed)
        found = {way: choose(split) for way, choose in WAYS.items()}
        for way, score in found.items():
            own[way].append(score)
            print(f"{name} {seed} {way}: {score}", flush=True)
        plain = {name: {way: [vars(s) for s in own] for way, own in ways.items()} for name, ways in scores.items()}
        write_text(record, json.dumps(plain, indent=1))
    return scores


def table(scores: Scores) -> str:
    """Means over the splits, as Markdown."""
    ways = "by evidence | by 5-fold cross-validation | δ = σ = 1"
    lines = [f"| data | training rows | {ways} | time: evidence | cross-validation | fixed | ratio |", "|---" * 9 + "|"]
    for name, ways in scores.items():
        values = {way: fmean(score.log_likelihood for score in own) for way, own in ways.items()}
        seconds = {way: fmean(score.seconds for score in own) for way, own in ways.items()}
        cells = " | ".join(f"{values[way]:.3f}" for way in WAYS)
        times = " | ".join(f"{seconds[way]:.1f} s" for way in WAYS)
        times += f" | {seconds['cross-validation'] / seconds['evidence']:.1f}"
        lines.append(f"| {name} | {len(PROBLEMS[name](FIRST).y)} | {cells} | {times} |")
    means = {way: fmean(s.log_likelihood for ways in scores.values() for s in ways[way]) for way in WAYS}
    total = {way: sum(s.seconds for ways in scores.values() for s in ways[way]) for way in WAYS}
    cells = " | ".join(f"**{means[way]:.3f}**" for way in WAYS)
    times = " | ".join(f"{total[way] / len(scores):.1f} s" for way in WAYS)
    ratio = total["cross-validation"] / total["evidence"]
    lines.append(f"| **mean** (time: of all splits) | | {cells} | {times} | **{ratio:.1f}** |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="splits or draws of each problem")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="go on with what was measured before")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    record = ROOT / "benchmarks" / "results" / "tuning.json"
    scores: Scores = {}
    if given.resume and record.exists():
        raw = json.loads(record.read_text())
        scores = {name: {way: [Score(**s) for s in own] for way, own in ways.items()} for name, ways in raw.items()}
    for choose in WAYS.values():  # the first calls of a process take longer
        choose(sine(FIRST + given.repeats))
    scores = measure(given.repeats, record, scores)
    page = ROOT / "docs" / "tuning.md"
    text = page.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{table(scores)}\n{END}{after}")
    print(table(scores))


if __name__ == "__main__":
    main()
