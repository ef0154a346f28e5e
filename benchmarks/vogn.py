"""VOGN with its default settings and Adam at three learning rates, on MNIST: test accuracy and NLL of a small CNN.

    python -m benchmarks.vogn                  # writes results/vogn.json and the table in docs/online-newton.md
    python -m benchmarks.vogn --resume         # continues after an interruption
    python -m benchmarks.vogn --task 3         # only the training runs of 3 epochs; --seeds 1 for one seed

The last 10,000 training images are the validation set. The defaults of VOGN, and the learning rate and schedule of Adam
in each row, were chosen by the validation accuracy; every other number in the table is on the test set.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from math import cos, pi
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dnn2gp import VOGN, CategoricalLikelihood
from dnn2gp.inference.metrics import accuracy, nll
from dnn2gp.paper.datasets import load_images
from dnn2gp.support.files import write_text

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "benchmarks" / "results" / "vogn.json", ROOT / "docs" / "online-newton.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TASKS = {3: 50_000, 30: 10_000}
"""Epochs, and the training images."""
RATES, BATCH, VALIDATION, NETWORKS = (3e-4, 1e-3, 3e-3), 128, 10_000, 10
VOGN_STEPS, VOGN_OPEN = "VOGN, steps=", "VOGN without steps="


@dataclass(frozen=True)
class Score:
    """Accuracy and NLL of one training run; `averaged` is over networks drawn from q."""

    epochs: int
    method: str
    seed: int
    seconds: float
    validation: tuple[float, float]
    test: tuple[float, float]
    averaged: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """Images and labels to train on, to choose with, and to report."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @staticmethod
    def load(num_train: int) -> Task:
        """The first images of the training set to train on, its last 10,000 for validation."""
        found = load_images("mnist")
        x, y = found.train_images, found.train_labels
        left = x[-VALIDATION:], y[-VALIDATION:]
        return Task((x[:num_train], y[:num_train]), left, (found.test_images, found.test_labels))


def cnn(seed: int) -> nn.Module:
    """Two convolutions and a linear layer, 18,378 weights."""
    torch.manual_seed(seed)
    first = nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def batches(task: Task, epochs: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random batches, the same for all methods."""
    x, y = task.train
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for part in torch.randperm(len(y), generator=generator).split(BATCH):
            yield x[part], y[part]


def steps_of(task: Task, epochs: int) -> int:
    return epochs * -(-len(task.train[1]) // BATCH)


def by_vogn(method: str, task: Task, epochs: int, seed: int) -> Score:
    """VOGN as it comes, with or without the number of steps."""
    network, steps = cnn(seed), steps_of(task, epochs) if method == VOGN_STEPS else None
    begin = time.perf_counter()
    optimizer = VOGN(network, CategoricalLikelihood(), len(task.train[1]), steps=steps, seed=seed)
    for inputs, labels in batches(task, epochs, seed):
        optimizer.step(inputs, labels)
    seconds = time.perf_counter() - begin
    generator = torch.Generator().manual_seed(seed)
    drawn = optimizer.posterior().sample(NETWORKS, generator)
    mean = torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    found = torch.zeros(len(task.test[1]), 10, dtype=torch.float64)
    for weights in drawn:
        torch.nn.utils.vector_to_parameters(weights, network.parameters())
        found += probabilities(network, task.test[0]) / len(drawn)
    torch.nn.utils.vector_to_parameters(mean, network.parameters())
    averaged = accuracy(found, task.test[1]), nll(found, task.test[1])
    return score_of(network, task, epochs, method, seed, seconds, averaged)


def by_adam(rate: float, cosine: bool, task: Task, epochs: int, seed: int) -> Score:
    """Adam with a constant rate, or with one that decays to 0 along a cosine."""
    network, steps = cnn(seed), steps_of(task, epochs)
    begin = time.perf_counter()
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    for t, (inputs, labels) in enumerate(batches(task, epochs, seed)):
        if cosine:
            optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + cos(pi * t / steps))
        optimizer.zero_grad()
        cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    return score_of(network, task, epochs, adam_name(rate, cosine), seed, time.perf_counter() - begin)


def adam_name(rate: float, cosine: bool) -> str:
    return f"Adam, lr = {rate:g}, {'cosine' if cosine else 'constant'}"


def probabilities(network: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([network(part).double().softmax(-1) for part in inputs.split(2000)])


def score_of(
    network: nn.Module,
    task: Task,
    epochs: int,
    method: str,
    seed: int,
    seconds: float,
    averaged: tuple[float, float] | None = None,
) -> Score:
    found = []
    for inputs, labels in (task.validation, task.test):
        own = probabilities(network, inputs)
        found.append((accuracy(own, labels), nll(own, labels)))
    return Score(epochs, method, seed, seconds, found[0], found[1], averaged)


METHODS: dict[str, Callable[[Task, int, int], Score]] = {
    **{name: partial(by_vogn, name) for name in (VOGN_STEPS, VOGN_OPEN)},
    **{adam_name(rate, cosine): partial(by_adam, rate, cosine) for rate in RATES for cosine in (False, True)},
}


def measure(tasks: list[int], seeds: int, scores: list[Score]) -> list[Score]:
    """All training runs that are not among the scores; each is written to disk when it ends."""
    done = {(score.epochs, score.method, score.seed) for score in scores}
    for epochs in tasks:
        task = Task.load(TASKS[epochs])
        for seed, (name, train) in itertools.product(range(seeds), METHODS.items()):
            if (epochs, name, seed) not in done:
                scores.append(train(task, epochs, seed))
                print(scores[-1], flush=True)
                write_text(RECORD, json.dumps([asdict(score) for score in scores], indent=1))
    return scores


def table(scores: list[Score]) -> str:
    """Means over the seeds for which all methods are measured: VOGN, and Adam where it is best in validation."""
    lines = [
        "| training | method | accuracy | NLL | NLL, average of 10 networks | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for epochs, images in TASKS.items():
        found = [score for score in scores if score.epochs == epochs]
        whole = {seed for seed in {s.seed for s in found} if {s.method for s in found if s.seed == seed} >= {*METHODS}}
        own = [score for score in found if score.seed in whole]
        if not own:
            continue
        adams = {score.method for score in own if score.method.startswith("Adam")}
        best = max(adams, key=lambda name: fmean(s.validation[0] for s in own if s.method == name))
        for method in (VOGN_STEPS, VOGN_OPEN, best):
            few = [score for score in own if score.method == method]
            pairs = [score.averaged for score in few if score.averaged is not None]
            averaged = f"{fmean(pair[1] for pair in pairs):.4f}" if pairs else ""
            values = f"{fmean(s.test[0] for s in few):.2%} | {fmean(s.test[1] for s in few):.4f} | {averaged}"
            lines.append(f"| {epochs} epochs, {images:,} images | {shown(method)} | {values} | {len(few)} |")
    return "\n".join(lines)


def shown(method: str) -> str:
    return {VOGN_STEPS: "`VOGN(…, steps=steps)`", VOGN_OPEN: "`VOGN(…)`"}.get(method, method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", type=int, choices=list(TASKS), help="only the training runs of so many epochs")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on with what was measured before")
    parser.add_argument("--only-table", action="store_true", help="only write the table, from what was measured before")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    scores: list[Score] = []
    if (given.resume or given.only_table) and RECORD.exists():
        scores = [Score(**own) for own in json.loads(RECORD.read_text())]
    if not given.only_table:
        scores = measure(list(TASKS) if given.task is None else [given.task], given.seeds, scores)
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    write_text(PAGE, f"{before}{BEGIN}\n{table(scores)}\n{END}{after}")
    print(table(scores))


if __name__ == "__main__":
    main()
