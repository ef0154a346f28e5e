"""A network, inputs and our features of them, each made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

import dnn2gp.features
from benchmarks.networks import random_inputs, random_labels
from dnn2gp import CategoricalLikelihood
from dnn2gp.features import NetworkFeatures
from dnn2gp.network import Network
from dnn2gp.weights.structures import DiagonalPrecision

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}


@dataclass(frozen=True, eq=False)
class Problem:
    """N random inputs of a shape for a network with K outputs, in one dtype, and the engine that is ours."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    num_examples: int
    engine: str
    dtype: torch.dtype = torch.float32
    num_outputs: int = 10
    load: Callable[[], tuple[Tensor, Tensor]] | None = None  # other data than random ones

    @cached_property
    def module(self) -> nn.Module:
        """The network, in eval mode."""
        return self.build().to(self.dtype)

    @cached_property
    def inputs(self) -> Tensor:
        """N random inputs, or those that are loaded."""
        inputs = random_inputs(self.num_examples, *self.shape) if self.load is None else self._loaded[0]
        return inputs.to(self.dtype)

    @cached_property
    def labels(self) -> Tensor:
        """N random labels, or those that are loaded."""
        return random_labels(self.num_examples, self.num_outputs) if self.load is None else self._loaded[1]

    @cached_property
    def features(self) -> NetworkFeatures:
        """Our engine."""
        return self.engine_class(Network(self.module, self.inputs), self.inputs)

    @cached_property
    def prior(self) -> DiagonalPrecision:
        """Precision 1 for every weight."""
        return DiagonalPrecision(torch.ones(self.features.num_weights, dtype=self.dtype))

    @property
    def engine_class(self) -> type[NetworkFeatures]:
        """The class of dnn2gp.features that is measured."""
        return getattr(dnn2gp.features, self.engine)

    @property
    def tolerance(self) -> float:
        """The relative error up to which two implementations agree."""
        return TOLERANCE[self.dtype]

    @cached_property
    def _loaded(self) -> tuple[Tensor, Tensor]:
        assert self.load is not None
        return self.load()

    def warm(self) -> None:
        """Make all that ours needs before its call: network, inputs, engine, prior."""
        _ = self.prior, self.inputs


def softmax_root(features: NetworkFeatures, inputs: Tensor) -> Tensor:
    """S with S Sᵀ = Λ at the network's own outputs: diag(p) − p pᵀ, N × K × (K − 1)."""
    return CategoricalLikelihood().noise_precision_root(features.outputs(inputs))
