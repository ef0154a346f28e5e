"""A process of its own: the peak of its memory above what there was before, by the kernel's own high-water mark."""

import gc
import json
import sys
from pathlib import Path

import torch
from torch import nn

from dnn2gp.features import LayerwiseFeatures
from dnn2gp.network import Network
from dnn2gp.weights.structures import DiagonalPrecision

torch.manual_seed(0)
torch.set_num_threads(1)
work, count, budget = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
out = Path(sys.argv[4]) if sys.argv[4] else None


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


networks = {
    "deep": lambda: (
        Net(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(3)), nn.ReLU(), Mean(2, 3), last=nn.Linear(32, 10)),
        torch.randn(count, 32, 5, 5),
    ),
    "words": lambda: (Words().eval(), torch.randint(500, (count, 12))),
    "LeNet": lambda: (lenet(), torch.randn(count, 1, 28, 28)),
    "many words": lambda: (
        Net(nn.Embedding(20000, 32), Mean(1), last=nn.Linear(32, 10)),
        torch.randint(0, 20000, (count, 20)),
    ),
    "longer than the first": lambda: (
        Net(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), Mean(1), last=nn.Linear(64, 10)),
        torch.randn(count, 400, 8),
    ),
    "frozen": lambda: (
        Net(
            nn.Conv2d(3, 32, 3, padding=1).requires_grad_(False),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1).requires_grad_(False),
            Mean(2, 3),
            last=nn.Linear(32, 10),
        ),
        torch.randn(count, 3, 48, 48),
    ),
    "transient": lambda: (Net(Transient(), last=nn.Linear(16, 10)), torch.randn(count, 16)),
    "depthwise": lambda: (
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
name = sys.argv[5]
module, x = networks[name]()
first = x[:, :10] if name == "longer than the first" else x
features = LayerwiseFeatures(Network(module, first), first, memory_budget=budget)
unit = DiagonalPrecision(torch.ones(features.num_weights))
root, columns = torch.randn(count, 10, 9), torch.randn(features.num_weights, 50)
other = torch.randint(500, (count, 17)) if name == "words" else x[: count // 2]
run = {
    "cross": lambda few: features.kernel_full(x[:few], unit, other[:few]),
    "kernel_full": lambda few: features.kernel_full(x[:few], unit, out=out),
    "kernel_trace": lambda few: features.kernel_trace(x[:few], unit),
    "ggn_diagonal": lambda few: features.ggn_diagonal(x[:few], root[:few]),
    "covariance": lambda few: features.covariance(x[:few], unit),
    "kronecker": lambda few: features.kronecker(x[:few], root[:few]),
    "jvp": lambda few: features.jvp(x[:few], columns),
    "outputs": lambda few: features.outputs(x[:few]),
}[work]
warm, few = lenet(), torch.randn(4, 1, 28, 28)  # libraries and their buffers; the measured network is not tried yet
LayerwiseFeatures(Network(warm, few), few).covariance(
    few, DiagonalPrecision(torch.ones(sum(w.numel() for w in warm.parameters())))
)
gc.collect()


def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
result = run(count)
peak = status("VmHWM") - before
kernel = "kernel_full" if work == "cross" else work
planned = 0
if work not in ("jvp", "outputs"):
    planned = features.plan(kernel, x, other if work == "cross" else None, out=bool(out)).bytes
print(json.dumps([peak, planned]))
