"""Step C: the kernel κ(x, x') = J(x) V J(x')ᵀ, Eqs. (9) and (14); for V = I the neural tangent kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.features import AveragedFeatures, LayerwiseFeatures, NetworkFeatures, StackedFeatures
from dnn2gp.inference.predictive import finite
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, check_inputs
from dnn2gp.support.errors import InputError
from dnn2gp.support.files import as_path
from dnn2gp.weights.structures import DiagonalPrecision, Precision


@dataclass(frozen=True, eq=False)
class Kernel:
    """κ(x, x') = φ(x)ᵀ V φ(x'), a K × K matrix for each pair of inputs, with V⁻¹ the `precision` of the weights."""

    features: NetworkFeatures | StackedFeatures | AveragedFeatures
    precision: Precision

    @staticmethod
    def neural_tangent(
        network: nn.Module,
        inputs: Inputs,
        memory_budget: int | float | None = None,
        features: Callable[..., NetworkFeatures] = LayerwiseFeatures,
    ) -> Kernel:
        """J(x) J(x')ᵀ at the current weights: the kernel of Eq. (9) at δ = 1. `inputs` are a few examples."""
        function = Network(network, check_inputs(inputs))
        engine = features(function, function.check_inputs(inputs), memory_budget=memory_budget)
        return Kernel(engine, DiagonalPrecision(torch.ones_like(function.weights)))

    def __repr__(self) -> str:
        """The features and the structure of the precision."""
        return f"Kernel({self.features!r}, {self.precision.structure.name} precision)"

    def full(
        self, inputs: Inputs, other: Inputs | None = None, *, out: str | Path | None = None
    ) -> Float[Tensor, "N K M K"]:
        """The full kernel: [n, k, m, l] = J_k(x_n) V J_l(x_m)ᵀ.

        `out` is a file for a kernel that is larger than the memory: it is written block by block and appears when it is
        complete, and the result is a view of it (row by row, in the dtype of the result, no header).
        """
        return self._computed(self.features.kernel_full, inputs, other, out)

    def trace(
        self, inputs: Inputs, other: Inputs | None = None, *, out: str | Path | None = None
    ) -> Float[Tensor, "N M"]:
        """tr κ(x, x'), as the paper plots it: the sum of the kernels of all outputs. `out`: see `full`."""
        return self._computed(self.features.kernel_trace, inputs, other, out)

    def diagonal(
        self, inputs: Inputs, other: Inputs | None = None, *, out: str | Path | None = None
    ) -> Float[Tensor, "N M K"]:
        """κ_kk(x, x') for each output k. `out`: see `full`."""
        return self._computed(self.features.kernel_diagonal, inputs, other, out)

    def _computed(
        self, product: Callable[..., Tensor], inputs: Inputs, other: Inputs | None, out: str | Path | None
    ) -> Tensor:
        inputs, other = self._checked(inputs, other)
        if out is None:
            return finite(product(inputs, self.precision, other).to(self.features.anchor.dtype), "kernel")
        if not isinstance(out, str | Path):
            raise InputError(f"out: expected a file name; got {type(out).__name__}.")
        return product(inputs, self.precision, other, out=as_path(out))

    def _checked(self, inputs: Inputs, other: Inputs | None) -> tuple[Inputs, Inputs | None]:
        check = self.features.checked_new
        return check(inputs), None if other is None else check(other)
