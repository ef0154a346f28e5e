"""Convert with data that are never in memory as a whole: 60,000 images of 3 × 32 × 32, generated on demand.

    python -m benchmarks.streaming                              # Iterative(rank=32, samples=8) and Diagonal(), 2 GB
    python -m benchmarks.streaming --examples 6000 --budget 2e8 # a tenth of it
    python -m benchmarks.streaming --inference diagonal --workers 2

Prints the peak growth of the resident memory of this process (without workers), the number of passes over the images,
and the seconds per pass. Linux only.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn
from torch.multiprocessing import Value
from torch.utils.data import DataLoader, Dataset

from dnn2gp import CategoricalLikelihood, Diagonal, Iterative, NetworkOutput, WeightSpace, convert
from dnn2gp.inference import Inference

INFERENCES: dict[str, Inference] = {
    "iterative": Iterative(rank=32, samples=8),
    "diagonal": WeightSpace(Diagonal()),
}


class MadeImages(Dataset):
    """Images of noise, each from its own seed; the class is the brightest of the first ten columns."""

    def __init__(self, count: int) -> None:
        self.count, self.reads = count, Value("q", 0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.reads.get_lock():
            self.reads.value += 1
        image = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(index))
        return image, int(image.mean((0, 1))[:10].argmax())


def network() -> nn.Module:
    """A convolutional network with 4,346 weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip


def measured(name: str, examples: int, budget: float, workers: int) -> dict[str, object]:
    """Convert once, and return what was measured."""
    data = MadeImages(examples)
    _warm_up()
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    start = time.perf_counter()
    loader = DataLoader(data, batch_size=256, num_workers=workers)
    convert(
        network(),
        loader,
        CategoricalLikelihood(),
        10.0,
        mean=NetworkOutput(),
        inference=INFERENCES[name],
        memory_budget=budget,
    )
    seconds, passes = time.perf_counter() - start, data.reads.value / examples
    return {
        "inference": repr(INFERENCES[name]),
        "examples": examples,
        "workers": workers,
        "data MB": round(examples * 3 * 32 * 32 * 4 / 1e6),
        "budget MB": round(budget / 1e6),
        "peak growth MB": round((_peak() - before) / 1e6),
        "seconds": round(seconds, 1),
        "passes": round(passes, 1),
        "seconds per pass": round(seconds / passes, 2),
    }


def _warm_up() -> None:
    """Load libraries with a conversion of a few images."""
    few = torch.randn(8, 3, 32, 32), torch.arange(8)
    convert(network(), few, CategoricalLikelihood(), 10.0, mean=NetworkOutput(), inference=WeightSpace(Diagonal()))


def _peak() -> int:
    """The peak resident memory since the high-water mark was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main() -> None:
    """Run the conversions that the options ask for, and print one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=60_000)
    parser.add_argument("--budget", type=float, default=2e9, help="in bytes")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--inference", nargs="*", choices=list(INFERENCES), default=list(INFERENCES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.inference:
        print(json.dumps(measured(name, options.examples, options.budget, options.workers)), flush=True)


if __name__ == "__main__":
    main()
