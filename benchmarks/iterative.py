"""Iterative inference: how far it is from the exact posterior, and what it costs.

    python -m benchmarks.iterative                        # writes benchmarks/results/iterative.json
    python -m benchmarks.iterative --only truth           # some of the measurements
    python -m benchmarks.iterative --page docs/speed.md   # also replaces the table of that page

Each measurement is a process of its own with one thread, so that CPU time and peak memory are those of the conversion
alone; a killed run continues where it stopped. DNN2GP_DATA names the folder of the images.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time

import torch
from torch import Tensor, nn

from benchmarks.outliers import small_cnn
from dnn2gp import CategoricalLikelihood, GaussianProcess, Iterative, NetworkOutput, WeightSpace, convert
from dnn2gp.paper.datasets import load_images
from dnn2gp.paper.networks import lenet5
from dnn2gp.support.files import write_text

_ROOT = Path(__file__).parents[1]
_BEGIN, _END = "<!-- iterative: begin -->", "<!-- iterative: end -->"
_FOREIGN = {"mnist": "fashion_mnist", "fashion_mnist": "mnist", "cifar10": "mnist"}


def mlp(seed: int = 0) -> nn.Module:
    """784-200-200-10 with tanh: 199,210 weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = (784, 200, 200, 10)
        layers = [part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.Tanh())]
        return nn.Sequential(nn.Flatten(), *layers[:-1])


def lenet5_colour(seed: int = 0) -> nn.Module:
    """LeNet-5 for 3 × 32 × 32 images: 62,006 weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        )


COSTS: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "LeNet-5, MNIST, 1,000": (lenet5, "mnist", 1_000),
    "LeNet-5, MNIST, 5,000": (lenet5, "mnist", 5_000),
    "LeNet-5, MNIST, 20,000": (lenet5, "mnist", 20_000),
    "LeNet-5, MNIST, 60,000": (lenet5, "mnist", 60_000),
    "LeNet-5, CIFAR-10, 20,000": (lenet5_colour, "cifar10", 20_000),
    "LeNet-5, CIFAR-10, 50,000": (lenet5_colour, "cifar10", 50_000),
    "MLP, Fashion-MNIST, 5,000": (mlp, "fashion_mnist", 5_000),
    "MLP, Fashion-MNIST, 60,000": (mlp, "fashion_mnist", 60_000),
}
TRUTH = "truth"


def trained(build: Callable[[], nn.Module], name: str, count: int, epochs: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network after some epochs of Adam, and its training data."""
    images = load_images(name)
    shape = (3, 32, 32) if name == "cifar10" else (1, 28, 28)
    x, y = images.train_images[:count].float().reshape(-1, *shape), images.train_labels[:count].long()
    network = build()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(epochs):
            for batch in torch.randperm(count).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
    return network.eval(), x, y


def cost(name: str) -> dict:
    """CPU time and memory of a conversion around the network, with δ by the evidence."""
    build, data, count = COSTS[name]
    network, x, y = trained(build, data, count, epochs=3)
    before, begin = _resident(), process_time()
    gp = _converted(network, x, y, Iterative())
    seconds, peak = process_time() - begin, _resident() - before
    report = gp.inference.report()  # pyright: ignore[reportAttributeAccessIssue]
    begin = process_time()
    images = load_images(data)
    found = gp.predict(images.test_images[:500].float().reshape(-1, *x.shape[1:]))
    return {
        "num_weights": gp.network.num_weights,
        "num_examples": count,
        "delta": gp.tuning.best["prior_precision"] if gp.tuning else None,
        "effective_dimension": report.effective_dimension,
        "samples": report.samples,
        "iterations": report.iterations,
        "error": found.latent_covariance_error.median().item(),  # pyright: ignore[reportOptionalMemberAccess]
        "seconds": seconds,
        "bytes": peak,
        "prediction_ms": (process_time() - begin) / 500 * 1e3,
    }


def truth(count: int = 20_000) -> dict:
    """A small CNN on Fashion-MNIST with 5,958 weights: exact in weight space, and by iterative inference."""
    network, x, y = trained(small_cnn, "fashion_mnist", count, epochs=5)
    own, foreign = load_images("fashion_mnist"), load_images("mnist")
    test = [each.test_images[:500].float().reshape(-1, 1, 28, 28) for each in (own, foreign)]
    exact = _converted(network, x, y, WeightSpace())
    expected = [_traces(exact, images) for images in test]
    rows = {}
    for samples in (64, 128):
        gp = _converted(network, x, y, Iterative(rank=512, samples=samples, tolerance=1e-6))
        report = gp.inference.report()  # pyright: ignore[reportAttributeAccessIssue]
        delta = _delta(exact)
        same = convert(
            network,
            (x, y),
            CategoricalLikelihood(),
            delta,
            mean=NetworkOutput(),
            inference=Iterative(rank=512, samples=samples, tolerance=1e-6),
        )
        rows[samples] = {
            "delta": _delta(gp) / delta - 1,
            "log_det": same.inference.report().log_det / exact.inference.log_det_ratio().item() - 1,  # pyright: ignore
            "log_det_error": report.log_det_error / report.log_det,
            **{
                name: _compared(same, images, true)
                for name, images, true in zip(("own", "foreign"), test, expected, strict=True)
            },
        }
    return {"delta": _delta(exact), "num_weights": exact.network.num_weights, "num_examples": count, "samples": rows}


def _compared(gp: GaussianProcess, images: Tensor, true: Tensor) -> dict[str, float]:
    """The relative errors of tr J Σ̃ Jᵀ, in units of their stated error too, and those of the samples alone."""
    found = gp.predict(images)
    errors = found.latent_covariance.diagonal(dim1=1, dim2=2).sum(1) / true - 1
    assert found.latent_covariance_error is not None
    z = errors / found.latent_covariance_error
    white = gp.inference.samples.own  # pyright: ignore[reportAttributeAccessIssue]
    drawn = gp.features.jvp(images, gp.prior.precision.unwhiten(white)).double()
    plain = drawn.square().mean(2).sum(1) / true - 1
    return {
        "median": errors.abs().median().item(),
        "95 %": errors.abs().quantile(0.95).item(),
        "|z| < 2": (z.abs() < 2).double().mean().item(),
        "plain, median": plain.abs().median().item(),
        "plain, 95 %": plain.abs().quantile(0.95).item(),
    }


def _converted(network: nn.Module, x: Tensor, y: Tensor, inference: Iterative | WeightSpace) -> GaussianProcess:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return convert(network, (x, y), CategoricalLikelihood(), mean=NetworkOutput(), inference=inference)


def _delta(gp: GaussianProcess) -> float:
    assert gp.tuning is not None
    delta = gp.tuning.best["prior_precision"]
    assert isinstance(delta, float)
    return delta


def _traces(gp: GaussianProcess, images: Tensor) -> Tensor:
    return gp.predict(images).latent_covariance.diagonal(dim1=1, dim2=2).sum(1)


def _resident() -> int:
    """The largest resident memory so far, in bytes."""
    return 1024 * getrusage(RUSAGE_SELF).ru_maxrss


def page(rows: dict[str, dict]) -> str:
    """A table of costs."""
    head = "| network, data, examples | weights | δ | d_eff | samples | stated error | CPU s | GB | prediction, ms |"
    lines = [head, "|---|" + "---:|" * 8]
    for name in COSTS:
        if name in rows:
            row = rows[name]
            lines.append(
                f"| {name} | {row['num_weights']:,} | {row['delta']:.3g} | {row['effective_dimension']:,.0f} | "
                f"{row['samples']} | {row['error']:.1%} | {row['seconds']:.0f} | {row['bytes'] / 1e9:.1f} | "
                f"{row['prediction_ms']:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, each in a process of its own, and write the table."""
    options = _parse()
    if options.one:
        torch.set_num_threads(1)
        print(json.dumps(truth() if options.one == TRUTH else cost(options.one)))
        return
    rows: dict[str, dict] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in (TRUTH, *COSTS):
        if name not in rows and all(word in name for word in options.only):
            command = [sys.executable, "-m", "benchmarks.iterative", "--one", name]
            done = subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True)
            rows[name] = json.loads(done.stdout.splitlines()[-1])
            write_text(options.out, json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False))
            print(name, rows[name], flush=True)
    text = page(rows)
    print(text)
    if options.page is not None:
        before, rest = options.page.read_text().split(_BEGIN)
        write_text(options.page, f"{before}{_BEGIN}\n{text}\n{_END}{rest.split(_END)[1]}")


def _parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words that the names of the measurements must contain")
    parser.add_argument("--one", help="measure this one here, and print it")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks" / "results" / "iterative.json")
    parser.add_argument("--page", type=Path, help="the page whose table is replaced, e.g. docs/speed.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
