"""Networks whose memory no layer rule knows, and the peak of what torch allocates while a product is computed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from dnn2gp.features import LayerwiseFeatures
from dnn2gp.network import Network
from dnn2gp.weights.structures import DiagonalPrecision


class Net(nn.Module):
    """A network of layers, and what is done to the last one's output."""

    def __init__(self, *layers, last):
        super().__init__()
        self.layers, self.last = nn.Sequential(*layers), last

    def forward(self, x):
        return self.last(self.layers(x))


def lenet():
    layers = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 60), nn.ReLU(), nn.Linear(60, 10))


class Transient(nn.Module):
    """Large things that no derivative needs."""

    def forward(self, x):
        return x.detach().unsqueeze(2).repeat(1, 1, 20000).mul(2.0).mean(2)


class Mean(nn.Module):
    """Over all axes but the first and one of the others."""

    def __init__(self, *axes):
        super().__init__()
        self.axes = axes

    def forward(self, x):
        return x.mean(self.axes)


class Words(nn.Module):
    """A transformer with a position for each word: longer inputs use more of a weight."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(500, 64), nn.Parameter(torch.randn(32, 64))
        layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(self.layers(self.table(x) + self.places[: x.shape[1]]).mean(1))


NETWORKS: dict[str, Callable[[int], tuple[nn.Module, Tensor]]] = {
    "deep": lambda count: (
        Net(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(3)), nn.ReLU(), Mean(2, 3), last=nn.Linear(32, 10)),
        torch.randn(count, 32, 5, 5),
    ),
    "words": lambda count: (Words().eval(), torch.randint(500, (count, 12))),
    "LeNet": lambda count: (lenet(), torch.randn(count, 1, 28, 28)),
    "many words": lambda count: (
        Net(nn.Embedding(20000, 32), Mean(1), last=nn.Linear(32, 10)),
        torch.randint(0, 20000, (count, 20)),
    ),
    "longer than the first": lambda count: (
        Net(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), Mean(1), last=nn.Linear(64, 10)),
        torch.randn(count, 400, 8),
    ),
    "frozen": lambda count: (
        Net(
            nn.Conv2d(3, 32, 3, padding=1).requires_grad_(False),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1).requires_grad_(False),
            Mean(2, 3),
            last=nn.Linear(32, 10),
        ),
        torch.randn(count, 3, 48, 48),
    ),
    "transient": lambda count: (Net(Transient(), last=nn.Linear(16, 10)), torch.randn(count, 16)),
    "depthwise": lambda count: (
        Net(
            nn.Conv2d(32, 32, 3, padding=1, groups=32),
            nn.Conv2d(32, 16, 1),
            nn.ReLU(),
            Mean(2, 3),
            last=nn.Linear(16, 10),
        ),
        torch.randn(count, 32, 32, 32),
    ),
}


def products(name: str, count: int, budget: float, out: Path | None) -> dict[str, Callable[[], tuple]]:
    """Each product of a new engine by name, with its plan."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, x = NETWORKS[name](count)
        first = x[:, :10] if name == "longer than the first" else x
        features = LayerwiseFeatures(Network(module, first), first, memory_budget=budget)
        root, columns = torch.randn(count, 10, 9), torch.randn(features.num_weights, 50)
        other = torch.randint(500, (count, 17)) if name == "words" else x[: count // 2]
    unit = DiagonalPrecision(torch.ones(features.num_weights))
    return {
        "cross": lambda: (features.kernel_full(x, unit, other), features.plan("kernel_full", x, other)),
        "kernel_full": lambda: (features.kernel_full(x, unit, out=out), features.plan("kernel_full", x, out=bool(out))),
        "kernel_trace": lambda: (features.kernel_trace(x, unit), features.plan("kernel_trace", x)),
        "ggn_diagonal": lambda: (features.ggn_diagonal(x, root), features.plan("ggn_diagonal", x)),
        "covariance": lambda: (features.covariance(x, unit), features.plan("covariance", x)),
        "kronecker": lambda: (features.kronecker(x, root), features.plan("kronecker", x)),
        "jvp": lambda: (features.jvp(x, columns), None),
        "outputs": lambda: (features.outputs(x), None),
    }


def allocated(work: Callable[[], object], mapped: int) -> int:
    """The most bytes that torch has allocated at once during the work, by its own profiler; not counting maps of a
    file of so many bytes."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = work()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    del result
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(size for size in sizes if not mapped or abs(size) != mapped))
