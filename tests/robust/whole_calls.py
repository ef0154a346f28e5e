"""The growth of resident memory at its peak during whole calls with a budget of 100 MB.

Run as a program: whole_calls.py NETWORK. Prints JSON: the peaks in bytes by call.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from dnn2gp import CategoricalLikelihood, Diagonal, FunctionSpace, GaussianProcess, WeightSpace, convert

BUDGET = 100e6
Calls = dict[str, Callable[[], object]]


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.side = nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.side(x) + self.second(self.first(x)))


def resnet() -> nn.Module:
    blocks = Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(500, 64), nn.Parameter(torch.randn(32, 64))
        layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(self.table(x) + self.places).mean(1))


def grown(work: Callable[[], object]) -> int:
    """The growth of the resident memory at its peak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    result = work()
    peak = status("VmHWM")
    del result
    return peak - before


def status(key: str) -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in text.splitlines() if line.startswith(key)).split()[1])


def images(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda count: torch.randn(count, *shape)


def words(count: int) -> torch.Tensor:
    return torch.randint(500, (count, 32))


def converted(module: nn.Module, x: torch.Tensor, **settings: object) -> GaussianProcess:
    data = x, torch.arange(len(x)) % 10
    return convert(module, data, CategoricalLikelihood(), memory_budget=BUDGET, **settings)  # pyright: ignore


def of_lenet(size: int) -> Calls:
    """Many predictions of a few weights, and a covariance beside the kernel of the data."""
    module, inputs = lenet().eval(), images(1, 28, 28)
    last = converted(module, inputs(100), subset="last layer", prior_precision=1.0)
    exact = converted(module, inputs(8 + 15 * size), inference=FunctionSpace(), prior_precision=1.0)
    many, some = inputs(8 + 700 * size), inputs(8 + 17 * size)
    return {"predict": lambda: last.predict(many), "covariance": lambda: exact.covariance(some)}


def of_resnet(size: int) -> Calls:
    """Passes through many large activations."""
    module, x = resnet().eval(), images(3, 32, 32)(8 + 12 * size)
    gp = converted(module, x[:8], structure=Diagonal(), prior_precision=1.0)
    ones = torch.ones(len(x), 10, 1)
    return {"backward": lambda: gp.features.vjp(x, ones), "predict": lambda: gp.predict(x[: 8 + size])}


def of_transformer(size: int) -> Calls:
    """The evidence at many values of δ, each with one number a weight; and rows of three small layers.

    These layers are far apart, so that a backward pass frees many blocks between those that it keeps.
    """
    module, x, many = Transformer().eval(), words(8 + 2 * size), words(8 + 29 * size)
    own = {"subset": ["layers.layers.0.norm1", "layers.layers.1.norm2", "last"], "prior_precision": 1.0}
    gp = converted(module, x, inference=WeightSpace(), **own)
    return {
        "tune": lambda: converted(module, x, structure=Diagonal()),
        "dense": lambda: converted(module, many, inference=WeightSpace(), **own),
        "predict": lambda: gp.predict(many),
    }


NETWORKS: dict[str, Callable[[int], Calls]] = {"LeNet-5": of_lenet, "ResNet": of_resnet, "transformer": of_transformer}


def measured(name: str) -> dict[str, int]:
    """The peaks of each call, after all of them have been made once on a few examples."""
    for call in NETWORKS[name](0).values():
        call()
    square = torch.eye(500).double()
    torch.linalg.eigh(square @ square)
    return {kind: grown(call) for kind, call in NETWORKS[name](10).items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    print(json.dumps(measured(sys.argv[1])))
