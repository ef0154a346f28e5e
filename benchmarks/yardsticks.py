"""784-200-200-10 with tanh on all of MNIST and of Fashion-MNIST, next to the published figures of other methods.

    python -m benchmarks.yardsticks                       # writes benchmarks/results/yardsticks.json
    python -m benchmarks.yardsticks --only MNIST          # the runs whose names contain these words
    python -m benchmarks.yardsticks --page docs/speed.md  # also replaces the table of that page

The network is trained with the δ that the evidence asks for: a third of the epochs with a first δ, then the evidence of
that network, then all epochs with its δ. The GP comes from `convert` with the training data alone. AUROC is that of the
entropy of the averaged probabilities, and of `gp.outlier_score`, on the test images of both sets. Time is CPU time with
one thread, from the trained network to the GP. Each run is a process; a killed one starts again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from benchmarks.iterative import mlp
from dnn2gp import CategoricalLikelihood, GaussianProcess, Iterative, NetworkOutput, convert
from dnn2gp.inference.metrics import accuracy, ece, nll
from dnn2gp.paper.datasets import load_images
from dnn2gp.support.files import write_text

_ROOT = Path(__file__).parents[1]
RESULTS = _ROOT / "benchmarks" / "results" / "yardsticks.json"
_BEGIN, _END = "<!-- yardsticks: begin -->", "<!-- yardsticks: end -->"
SETS = {"MNIST": ("mnist", "fashion_mnist"), "Fashion-MNIST": ("fashion_mnist", "mnist")}
PUBLISHED: dict[str, list[tuple[str, str, str, str, str]]] = {
    "MNIST": [
        ("MAP", "0.0759", "0.008", "0.905", ""),
        ("last layer, Kronecker", "0.081", "0.015", "0.904", "52"),
        ("all layers, Kronecker", "0.0945", "0.029", "0.959", "985"),
        ("VaLLA, 500 points", "0.0748", "0.012", "0.925", "10,805"),
    ],
    "Fashion-MNIST": [
        ("MAP", "0.373", "", "0.874", ""),
        ("last layer, Kronecker", "0.373", "", "0.878", ""),
        ("all layers, Kronecker", "0.377", "", "0.934", ""),
        ("VaLLA, 500 points", "0.349", "", "0.943", ""),
    ],
}
"""NLL, ECE, AUROC and CPU seconds of the authors of VaLLA, with 55,000 training images."""
EPOCHS, BATCH, RATE, FIRST_DELTA = 30, 100, 1e-3, 5.0
_PIECE, _BUDGET = 500, 10e9
LIKELIHOOD = CategoricalLikelihood()


def trained(x: Tensor, y: Tensor, delta: float, epochs: int, seed: int) -> nn.Module:
    """Adam on the mean loss plus ½ δ wᵀw / N, with a rate that decreases linearly to zero."""
    network = mlp(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, weight_decay=delta / len(y))
    steps = epochs * -(-len(y) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(epochs):
            for batch in torch.randperm(len(y)).split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
                schedule.step()
    return network.eval()


def evidence_delta(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """The δ of the largest evidence, from a small basis."""
    quick = Iterative(rank=256, samples=1, tolerance=0.99, max_iterations=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp = convert(network, (x, y), LIKELIHOOD, mean=NetworkOutput(), inference=quick, memory_budget=_BUDGET)
    assert gp.tuning is not None
    delta = gp.tuning.best["prior_precision"]
    assert isinstance(delta, float)
    return delta


def measured(name: str, seed: int, count: int, epochs: int) -> dict:
    """One row of the results."""
    own, other = (load_images(each) for each in SETS[name])
    x, y = pixels(own.train_images[:count]), own.train_labels[:count].long()
    begin = process_time()
    first = trained(x, y, FIRST_DELTA, max(1, epochs // 3), seed)
    after_first = process_time()
    delta = evidence_delta(first, x, y)
    after_evidence = process_time()
    network = trained(x, y, delta, epochs, seed)
    after_training = process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp = convert(network, (x, y), LIKELIHOOD, delta, inference=Iterative(), memory_budget=_BUDGET)
    seconds = process_time() - after_training
    report = gp.inference.report()  # pyright: ignore[reportAttributeAccessIssue]
    inside, outside = pixels(own.test_images), pixels(other.test_images)
    labels = own.test_labels.long()
    with torch.no_grad():
        plain, foreign = network(inside).softmax(1), network(outside).softmax(1)
    found = [_answers(gp, images) for images in (inside, outside)]
    return {
        "data": name,
        "seed": seed,
        "num_train": len(y),
        "delta": delta,
        "mean": gp.centre.name,
        "calibration": [gp.calibration.scale, gp.calibration.temperature, gp.calibration.scores],
        "seconds": {
            "training": after_first - begin + after_training - after_evidence,
            "evidence": after_evidence - after_first,
            "posterior": seconds,
        },
        "report": str(report),
        "network": {**quality(plain, labels), "auroc": auroc(entropy(plain), entropy(foreign))},
        "GP": {
            **quality(found[0]["probabilities"], labels),
            "auroc": auroc(entropy(found[0]["probabilities"]), entropy(found[1]["probabilities"])),
            "auroc, scored entropy": auroc(found[0]["entropy"], found[1]["entropy"]),
            "auroc, outlier score": auroc(found[0]["score"], found[1]["score"]),
        },
    }


def _answers(gp: GaussianProcess, images: Tensor) -> dict[str, Tensor]:
    """Averaged probabilities, the entropy with its own covariance, and the outlier score, a piece at a time."""
    parts = []
    for piece in images.split(_PIECE):
        prediction = gp.predict(piece)
        parts.append((prediction.probabilities, prediction.entropy, gp.outlier_score(piece)))
    names = "probabilities", "entropy", "score"
    return {name: torch.cat([part[place] for part in parts]) for place, name in enumerate(names)}


def quality(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, NLL and ECE."""
    return {
        "accuracy": accuracy(probabilities, labels),
        "nll": nll(probabilities, labels),
        "ece": ece(probabilities, labels),
    }


def pixels(images: Tensor) -> Tensor:
    """As one channel."""
    return images.float().reshape(-1, 1, 28, 28)


def entropy(probabilities: Tensor) -> Tensor:
    """H(p) in nats."""
    return torch.special.entr(probabilities.double()).sum(1)


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The probability that an image of the other set has the larger score."""
    labels = np.repeat([0, 1], [len(inside), len(outside)])
    return float(roc_auc_score(labels, torch.cat([inside, outside]).double().numpy()))


def page(rows: dict[str, dict]) -> str:
    """A table: published figures, then ours."""
    lines = ["| trained on | method | NLL | ECE | AUROC | CPU s |", "|---|---|---:|---:|---:|---:|"]
    for name in SETS:
        lines += [f"| {name} | {' | '.join(cells)} |" for cells in PUBLISHED[name]]
        for row in (row for row in rows.values() if row["data"] == name):
            own, plain = row["GP"], row["network"]
            lines += [
                f"| {name} | our network, seed {row['seed']} | {plain['nll']:.4f} | {plain['ece']:.3f} | "
                f"{plain['auroc']:.3f} | |",
                f"| {name} | **its GP** | {own['nll']:.4f} | {own['ece']:.3f} | {own['auroc']:.3f}; `outlier_score` "
                f"{own['auroc, outlier score']:.3f} | {row['seconds']['posterior']:.0f} |",
            ]
            for peer, other in row.get("peers", {}).items():
                lines.append(
                    f"| {name} | {peer}, on our network | {other['nll']:.4f} | {other['ece']:.3f} | "
                    f"{other['auroc']:.3f} | {other['seconds']:.0f} |"
                )
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, each in a process of its own, and write the table."""
    options = _parse()
    if options.one:
        torch.set_num_threads(1)
        name, seed = options.one
        print(json.dumps(measured(name, int(seed), options.examples, options.epochs)))
        return
    rows: dict[str, dict] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in SETS:
        for seed in options.seeds:
            key = f"{name}, seed {seed}"
            if key in rows or not all(word in key for word in options.only):
                continue
            command = [sys.executable, "-m", "benchmarks.yardsticks", "--one", name, str(seed)]
            command += ["--examples", str(options.examples), "--epochs", str(options.epochs)]
            done = subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True)
            rows[key] = json.loads(done.stdout.splitlines()[-1])
            write_text(options.out, json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False))
            print(key, rows[key], flush=True)
    text = page(rows)
    print(text)
    if options.page is not None:
        before, rest = options.page.read_text().split(_BEGIN)
        write_text(options.page, f"{before}{_BEGIN}\n{text}\n{_END}{rest.split(_END)[1]}")


def _parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words that the names of the runs must contain")
    parser.add_argument("--one", nargs=2, metavar=("SET", "SEED"), help="measure this one here, and print it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--examples", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="the page whose table is replaced, e.g. docs/speed.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
