"""What the tests of the layerwise engine share: a readout of any layer, and every product against the explicit J."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dnn2gp.features import FactoredJacobian, LayerwiseFeatures
from dnn2gp.network import Network
from dnn2gp.support.errors import FallbackWarning, MemoryBudgetError
from dnn2gp.weights.structures import DiagonalPrecision

from reference import brute_force

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rand_tokens(entries: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(entries, shape, generator=torch.Generator().manual_seed(seed))


class Readout(nn.Module):
    """tanh of a layer's outputs, mixed by fixed numbers, so that each output of the network meets all of them."""

    def __init__(self, layer: nn.Module, call: Callable[..., Tensor], inputs: Any, outputs: int) -> None:
        super().__init__()
        self.layer, self.call = layer, call
        with torch.no_grad():
            width = self.hidden(*(inputs if isinstance(inputs, tuple) else (inputs,))).shape[1]
        self.register_buffer("mix", randn(width, outputs, seed=7) / width**0.5)

    def hidden(self, *inputs: Tensor) -> Tensor:
        return torch.tanh(self.call(self.layer, *inputs)).flatten(1)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.hidden(*inputs) @ self.mix


@dataclass(frozen=True)
class Case:
    """A layer, its inputs for n examples, and how it is called."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    call: Callable[..., Tensor] = field(default=lambda layer, *inputs: layer(*inputs))

    def network(self, num: int = 5, outputs: int = 2) -> tuple[nn.Module, Any]:
        """The network in float64 and eval mode with random weights and statistics, and n examples."""
        inputs = self.inputs(num)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = self.build().double().eval()
        for index, tensor in enumerate((*module.parameters(), *module.buffers())):
            if tensor.is_floating_point():
                noise = randn(*tensor.shape, seed=index)
                tensor.data.add_(0.1 * (noise if tensor.requires_grad else noise.abs()))
        return Readout(module, self.call, inputs, outputs).eval(), inputs


def engine(module: nn.Module, inputs: Any, budget: int | None = None) -> LayerwiseFeatures:
    return LayerwiseFeatures(Network(module, inputs), inputs, memory_budget=budget)


@contextmanager
def falls_back(count: int = 1) -> Iterator[None]:
    """Within, the engine says so many times that it leaves weights to the general engine."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    found = [w for w in caught if issubclass(w.category, FallbackWarning)]
    assert len(found) == count, [str(w.message) for w in found]


def left(features: LayerwiseFeatures) -> set[str]:
    """The names of the weights that are left to the general engine."""
    return set() if features.rest is None else set(features.rest.network.layout.names)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    """Equal relative to the largest entry."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    gap, largest = (found.double() - expected).abs().max().item(), expected.abs().max().item()
    assert gap <= tolerance * largest, f"off by {gap:.3g}, the largest entry is {largest:.3g}"


def explicit(module: nn.Module, inputs: Any) -> Tensor:
    """J by brute force in float64, of a copy of the inputs."""
    module = copy.deepcopy(module).double()
    leaves = inputs if isinstance(inputs, tuple) else (inputs,)
    wide = tuple(leaf.double().clone() if leaf.is_floating_point() else leaf.clone() for leaf in leaves)
    return brute_force.jacobian(module, wide)


def constant(features: LayerwiseFeatures) -> DiagonalPrecision:
    """One precision for all weights."""
    return DiagonalPrecision(torch.full((features.num_weights,), 2.5, dtype=features.anchor.dtype))


def various(features: LayerwiseFeatures) -> DiagonalPrecision:
    """A precision for each weight."""
    return DiagonalPrecision(randn(features.num_weights, seed=3).abs().add(0.5).to(features.anchor.dtype))


def first(inputs: Any, count: int) -> Any:
    return tuple(leaf[:count] for leaf in inputs) if isinstance(inputs, tuple) else inputs[:count]


def assert_products(features: LayerwiseFeatures, inputs: Any, J: Tensor) -> None:
    """Every product against those of the explicit J."""
    dtype = features.anchor.dtype
    tolerance = TOLERANCE[dtype]
    N, K, P = J.shape
    close(features.jacobian(inputs), J, tolerance)
    v, u = randn(P, 2 * K + 1).to(dtype), randn(N, K, 2 * K + 1).to(dtype)
    close(features.jvp(inputs, v), J @ v.double(), tolerance)
    close(features.vjp(inputs, u), torch.einsum("nkp,nks->ps", J, u.double()), tolerance)
    root = randn(N, K, 2).to(dtype)
    rows = root.double().mT @ J
    close(features.ggn_diagonal(inputs, root), rows.square().sum((0, 1)), tolerance)
    each = torch.einsum("nkp,nk->np", J, u[..., 0].double())
    sums, squares = features.gradient_moments(inputs, lambda outputs, part: u[part, :, 0])
    close(sums, each.sum(0), tolerance)
    close(squares, each.square().sum(0), tolerance)
    assert_kernels(features, inputs, J, constant(features))
    full = kernel(J, various(features))
    close(features.covariance(inputs, various(features)), torch.einsum("nknl->nkl", full), tolerance)
    white = (rows / constant(features).values.double().sqrt()).flatten(0, 1)
    close(FactoredJacobian(features, inputs, root, constant(features)).gram(), white @ white.T, tolerance)


def kernel(J: Tensor, precision: DiagonalPrecision) -> Tensor:
    """J Σ Jᵀ, N × K × N × K."""
    return torch.einsum("nkp,p,mlp->nkml", J, precision.values.double().reciprocal(), J)


def assert_kernels(features: LayerwiseFeatures, inputs: Any, J: Tensor, precision: DiagonalPrecision) -> None:
    """Kernels and covariances."""
    tolerance = TOLERANCE[features.anchor.dtype]
    full = kernel(J, precision)
    trace, diagonal = torch.einsum("nkmk->nm", full), torch.einsum("nkmk->nmk", full)
    close(features.kernel_full(inputs, precision), full, tolerance)
    close(features.kernel_trace(inputs, precision), trace, tolerance)
    close(features.kernel_diagonal(inputs, precision), diagonal, tolerance)
    close(features.covariance(inputs, precision), torch.einsum("nknl->nkl", full), tolerance)


def assert_cross_kernels(features: LayerwiseFeatures, inputs: Any, J: Tensor, precision: DiagonalPrecision) -> None:
    """Between some of the inputs and all."""
    full = kernel(J, precision)[:2]
    close(features.kernel_full(first(inputs, 2), precision, inputs), full)
    close(features.kernel_trace(first(inputs, 2), precision, inputs), torch.einsum("nkmk->nm", full))
    close(features.kernel_diagonal(first(inputs, 2), precision, inputs), torch.einsum("nkmk->nmk", full))


def tight_budget(features: LayerwiseFeatures, *works: Callable[[], object]) -> int:
    """Give the features the smallest budget (to a quarter) for this work; return how often factors are made in it."""
    made, calls, budget = features.factors, [], 1000

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return made(*args, **kwargs)

    def is_enough(budget: int) -> bool:
        features.memory_budget = budget
        calls.clear()
        try:
            for work in works:
                work()
        except MemoryBudgetError:
            return False
        return True

    features.factors = counted
    try:
        while not is_enough(2 * budget):
            budget *= 2
        while not is_enough(budget):
            budget += budget // 4
        return len(calls)
    finally:
        features.factors = made


def assert_right(
    module: nn.Module, inputs: Any, weights_left: set[str] | None = None, budget: int | None = None
) -> None:
    """Every product, and which weights have no rule."""
    with falls_back(1 if weights_left else 0):
        features = engine(module, inputs, budget)
        assert left(features) == (weights_left or set())
        assert_products(features, inputs, explicit(module, inputs))
