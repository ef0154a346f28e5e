"""The matrix of benchmarks.memory: networks, posteriors, and sizes of data that need a memory budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.networks import lenet5, random_inputs, random_labels, small_resnet, token_transformer
from dnn2gp import BlockDiagonal, Diagonal, FunctionSpace, Kronecker, WeightSpace

MB = 1_000_000
BUDGETS = (100, 500, 2000)
"""In MB."""
TINY = 12
"""Examples of the call that warms up."""
CALLS = ("convert", "tune", "predict", "evidence", "kernel", "covariance", "load")
"""`tune` is convert with δ chosen by the evidence, as by default."""


@dataclass(frozen=True)
class Architecture:
    """A network, its inputs, and subsets of its layers whose dense precision nearly fills each budget."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    subsets: dict[int, tuple[str, ...]]
    exact: dict[int, int]
    """Examples for function space, by budget."""
    streamed: int
    """Examples for structures that only go through the data."""
    kernel: dict[int, int]
    """Inputs of a kernel matrix."""


def _images(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: random_inputs(count, *shape).float()


def _tokens(count: int) -> Tensor:
    return torch.randint(500, (count, 32), generator=torch.Generator().manual_seed(0))


ARCHITECTURES = {
    "LeNet-5": Architecture(
        lenet5,
        _images(1, 28, 28),
        {100: ("0", "11"), 500: ("0", "3", "11"), 2000: ("0", "3", "11")},
        {100: 150, 500: 400, 2000: 800},
        5_000,
        {100: 400, 500: 900, 2000: 1500},
    ),
    "ResNet": Architecture(
        small_resnet,
        _images(3, 32, 32),
        {
            100: ("0", "8"),
            500: ("0", "3.conv1", "8"),
            2000: ("0", "4.conv1", "4.shortcut.0", "8"),
        },
        {100: 30, 500: 100, 2000: 200},
        300,
        {100: 60, 500: 150, 2000: 250},
    ),
    "transformer": Architecture(
        token_transformer,
        _tokens,
        {
            100: ("layers.0.norm1", "layers.1.norm2", "head"),
            500: ("layers.1.self_attn.out_proj",),
            2000: ("layers.1.linear1",),
        },
        {100: 60, 500: 150, 2000: 250},
        300,
        {100: 100, 500: 250, 2000: 400},
    ),
}
POSTERIORS = ("function space", "weight space", "block diagonal", "Kronecker", "diagonal", "last layer")


@dataclass(frozen=True)
class Cell:
    """One network with one posterior at one budget."""

    network: str
    posterior: str
    budget: int
    """In MB."""

    @property
    def architecture(self) -> Architecture:
        """The network and its sizes."""
        return ARCHITECTURES[self.network]

    def module(self) -> nn.Module:
        """The network, in float32 and eval mode."""
        return self.architecture.build().float()

    def settings(self) -> dict[str, Any]:
        """The arguments of convert that choose the posterior."""
        own = {"subset": list(self.architecture.subsets[self.budget])}
        return {
            "function space": {"inference": FunctionSpace()},
            "weight space": {"inference": WeightSpace(), **own},
            "block diagonal": {"structure": BlockDiagonal(), **own},
            "Kronecker": {"structure": Kronecker()},
            "diagonal": {"structure": Diagonal()},
            "last layer": {"subset": "last layer"},
        }[self.posterior]

    def data(self, *, tiny: bool) -> tuple[Tensor, Tensor]:
        """Training inputs and labels."""
        large = self.architecture.streamed
        if self.posterior == "function space":
            large = self.architecture.exact[self.budget]
        elif self.posterior in ("weight space", "block diagonal"):
            large = min(large, 1000)
        count = TINY if tiny else large
        return self.architecture.inputs(count), random_labels(count, 10)

    def inputs(self, call: str, *, tiny: bool) -> Tensor:
        """The inputs of a prediction or a kernel."""
        if tiny:
            return self.architecture.inputs(TINY)
        if call in ("kernel", "covariance"):
            count = self.architecture.kernel[self.budget]
            exact = self.posterior in ("function space", "last layer")
            return self.architecture.inputs(count if call == "kernel" else count // (2 if exact else 8))
        cheap = self.posterior in ("diagonal", "Kronecker", "last layer")
        return self.architecture.inputs(self.architecture.streamed if cheap else 300)
