"""Networks of every kind that people bring, each with data and a likelihood, small enough for brute force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dnn2gp.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood, Likelihood

from reference import brute_force


class LeNet5(nn.Sequential):
    """conv 6@5, pool, conv 16@5, pool, 120, 84, 10."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )


class ResNet(nn.Module):
    """Two residual blocks with BatchNorm, whose running statistics are not those of a fresh layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, bias=False)) for _ in range(2)
        )
        self.head = nn.Linear(8, 4)
        for block in self.blocks:
            block[0].running_mean.uniform_(-0.5, 0.5)
            block[0].running_var.uniform_(0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    """A two-layer encoder with dropout and a padding mask: two positional inputs."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        hidden = self.encoder(x, src_key_padding_mask=padding)
        return self.head(hidden[:, 0])


class Recurrent(nn.Module):
    """An LSTM or a GRU, which torch.func cannot batch."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.cell = kind(3, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Embedding(nn.Module):
    """Tokens and a number, by name: a dict of tensors; one logit, output of shape (N,)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.head = nn.Linear(5, 1)

    def forward(self, tokens: Tensor, amount: Tensor) -> Tensor:
        return self.head(torch.cat([self.table(tokens).mean(1), amount], 1))[:, 0]


class Shared(nn.Module):
    """An embedding tied to the output layer, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens).mean(1)
        return self.head(torch.tanh(self.middle(torch.tanh(self.middle(hidden)))))


class Grid(nn.Module):
    """Multi-output regression: outputs of shape (N, 2, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.LayerNorm(5), nn.Linear(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).unflatten(1, (2, 3))


def frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    network[0].requires_grad_(False)
    return network


@dataclass(frozen=True)
class Entry:
    """How to make the network, its inputs and its targets (float64), and what loss it has."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], object]
    likelihood: Likelihood
    loss: Callable[[Tensor, Tensor], Tensor]
    targets: Callable[[int], Tensor]


def _randn(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape, dtype=torch.float64)


def _labels(classes: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randint(classes, (n,))


def _transformer_inputs(n: int) -> tuple[Tensor, Tensor]:
    padding = torch.zeros(n, 5, dtype=torch.bool)
    padding[:, 4] = torch.rand(n) < 0.5
    return torch.randn(n, 5, 8, dtype=torch.float64), padding


def _embedding_inputs(n: int) -> dict[str, Tensor]:
    return {"tokens": torch.randint(11, (n, 3)), "amount": torch.randn(n, 1, dtype=torch.float64)}


_GAUSSIAN = (GaussianLikelihood(0.5), brute_force.gaussian(0.5))
_CATEGORICAL = (CategoricalLikelihood(), brute_force.categorical)

ZOO: dict[str, Entry] = {
    "MLP": Entry(
        lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)), _randn(3), *_CATEGORICAL, _labels(3)
    ),
    "LeNet-5": Entry(LeNet5, _randn(1, 28, 28), *_CATEGORICAL, _labels(10)),
    "ResNet with BatchNorm": Entry(ResNet, _randn(3, 6, 6), *_CATEGORICAL, _labels(4)),
    "transformer encoder": Entry(Transformer, _transformer_inputs, *_CATEGORICAL, _labels(3)),
    "LSTM": Entry(lambda: Recurrent(nn.LSTM), _randn(4, 3), *_GAUSSIAN, _randn(2)),
    "GRU": Entry(lambda: Recurrent(nn.GRU), _randn(4, 3), *_GAUSSIAN, _randn(2)),
    "embedding, dict input": Entry(
        Embedding,
        _embedding_inputs,
        BernoulliLikelihood(),
        brute_force.bernoulli,
        lambda n: torch.randint(2, (n, 1)).double(),
    ),
    "frozen weights": Entry(frozen, _randn(3), *_GAUSSIAN, _randn(2)),
    "shared weights": Entry(Shared, lambda n: torch.randint(6, (n, 3)), *_CATEGORICAL, _labels(6)),
    "multi-output regression": Entry(Grid, _randn(4), *_GAUSSIAN, _randn(6)),
}


@dataclass(frozen=True)
class Specimen:
    """One network of the zoo, in float64, with data and test inputs."""

    module: nn.Module
    inputs: object
    targets: Tensor
    test_inputs: object
    entry: Entry


def specimen(name: str, examples: int = 6, tests: int = 3, seed: int = 0) -> Specimen:
    """Build it from a seed, leaving the global generator as it was."""
    entry = ZOO[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = entry.build().double().eval()
        inputs, targets, test_inputs = entry.inputs(examples), entry.targets(examples), entry.inputs(tests)
    return Specimen(module, inputs, targets, test_inputs, entry)


def brute_force_gp(case: Specimen, delta: float) -> dict[str, Tensor]:
    """Jacobian, kernel, posterior covariance and mean of the GP at the test inputs, from explicit matrices in float64.

    Function space, with A = I + RᵀKR and R a root of Λ by eigenvalues, as P may be in the tens of thousands.
    """
    f = brute_force.outputs(case.module, case.inputs)
    J, J_test = brute_force.jacobian(case.module, case.inputs), brute_force.jacobian(case.module, case.test_inputs)
    r, Lam = brute_force.residual_and_precision(case.entry.loss, f, case.targets)
    values, vectors = torch.linalg.eigh(Lam)
    root = torch.block_diag(*(vectors * values.clamp(min=0).sqrt().unsqueeze(1)))
    flat, flat_test = J.flatten(0, 1), J_test.flatten(0, 1)
    K, K_cross, K_test = (a @ b.T / delta for a, b in ((flat, flat), (flat_test, flat), (flat_test, flat_test)))
    A = torch.eye(len(flat), dtype=K.dtype) + root.T @ K @ root
    covariance = K_test - K_cross @ root @ torch.linalg.solve(A, root.T @ K_cross.T)
    # Σ̃g = V(g − Jᵀ R A⁻¹ Rᵀ J V g), g = Jᵀr + δw
    gradient = flat.T @ r.flatten() + delta * brute_force.flat_weights(case.module)
    step = (gradient - flat.T @ root @ torch.linalg.solve(A, root.T @ flat @ gradient / delta)) / delta
    mean = brute_force.outputs(case.module, case.test_inputs).flatten() - flat_test @ step
    shape = J_test.shape[:2]
    return {
        "Jacobian": J_test,
        "kernel": K_test.unflatten(1, shape).unflatten(0, shape),
        "posterior covariance": covariance.unflatten(1, shape).unflatten(0, shape),
        "posterior mean": mean.reshape(shape),
        "log determinant": torch.logdet(A),
    }
