"""Networks and work for tests of threads and of processes: what a worker imports must have a module of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dnn2gp import CategoricalLikelihood, FunctionSpace, GaussianProcess, WeightSpace, convert


class Attention(nn.Module):
    """Attention, layer norm, and weights without a layer rule."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix = nn.Linear(3, 4), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.last = nn.Parameter(torch.randn(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("ni,io->no", self.mix(self.first(x)[:, None].expand(-1, 2, -1)).mean(1), self.last)


class Stateful(nn.Module):
    """In train mode, with a counter, a cache, a list and a random number that does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 2))
        self.calls, self.seen, self.last = 0, [], None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(x)
        self.last = self.layers(x)
        return self.last + 0 * torch.rand(()) + len(self.seen) - 1


class Uncopyable(Stateful):
    """Held by a lock, which neither copy nor pickle takes."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "attention": Attention,
    "stateful": Stateful,
    "uncopyable": Uncopyable,
}


def network(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return NETWORKS[name]().double()


def data(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, generator=generator, dtype=torch.float64), torch.arange(count) % 2


def converted(module: nn.Module, space: str = "function") -> GaussianProcess:
    inference = WeightSpace() if space == "weight" else FunctionSpace()
    return convert(module, data(), CategoricalLikelihood(), 1.0, inference=inference)


def predicted(gp: GaussianProcess) -> tuple[Tensor, Tensor]:
    found = gp.predict(data()[0] + 0.1)
    return found.mean, found.variance


def work(gp: GaussianProcess) -> tuple[Tensor, Tensor]:
    """What a worker process does."""
    torch.set_num_threads(1)
    return predicted(gp)
