"""The log marginal likelihood as a function of δ and σ at fixed features, and where it is largest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from dnn2gp.errors import InputError

RANGE = (1e-8, 1e8)
"""Multiples of the prior precision, and of the noise variance, that `maximise` looks at."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where the evidence is largest: multiples of δ and σ, and what was found there."""

    precision_scale: Float[Tensor, " *L"]
    """c of the prior precision c δ₀: one number, or one a layer."""
    noise_scale: Float[Tensor, " *K"]
    """s of the noise s σ₀: one number, or one an output; 1 where it was not tuned."""
    value: float
    """The log evidence there."""
    gradient: float
    """The largest entry of its gradient with respect to log c and log s, where they are not at an edge."""
    at_edge: tuple[str, ...]
    """"δ" or "σ" where the largest value lies at the edge of the range: the evidence then has no maximum in it."""


class EvidenceFunction(ABC):
    """log p(D | c δ₀, s σ₀): differentiable, Monte Carlo free, exact at fixed features."""

    num_precisions: int
    """How many numbers c it takes: 1, or one a layer."""
    num_noises: int
    """How many numbers s it takes: 0 unless the likelihood is Gaussian, else 1 or one an output."""

    @abstractmethod
    def __call__(
        self, precision_scale: Float[Tensor, "..."] | float, noise_scale: Float[Tensor, "..."] | float = 1.0
    ) -> Float[Tensor, ""]:
        """The log evidence."""

    @abstractmethod
    def start(self, noise: bool, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """(c, s) to climb from, within the bounds of c."""

    def maximise(self, *, noise: bool = True, bounds: tuple[float, float] = RANGE) -> Optimum:
        """The largest evidence over log c, and over log s too if `noise`, by L-BFGS with exact gradients.

        `bounds` are those of c and of s², relative to the model's own δ₀ and σ₀².
        """
        noise = noise and self.num_noises > 0
        first, second = self.start(noise, bounds)
        begin = torch.cat([first.reshape(-1), second.reshape(-1)] if noise else [first.reshape(-1)]).log()
        edges = np.log(bounds)
        limits = [tuple(edges)] * self.num_precisions + [tuple(edges / 2)] * (self.num_noises if noise else 0)

        def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
            logs = torch.tensor(point, dtype=torch.float64, requires_grad=True)
            value = self._at(logs, noise)
            (gradient,) = torch.autograd.grad(value, logs)
            return -value.item(), -gradient.numpy()

        options = {"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9}
        found = minimize(negative, begin.numpy(), jac=True, method="L-BFGS-B", bounds=limits, options=options)
        return self._optimum(found.x, noise, limits)

    def _optimum(self, logs: np.ndarray, noise: bool, limits: list[tuple[float, ...]]) -> Optimum:
        point = torch.tensor(logs, dtype=torch.float64, requires_grad=True)
        value = self._at(point, noise)
        (gradient,) = torch.autograd.grad(value, point)
        low, high = (torch.tensor(side, dtype=torch.float64) for side in zip(*limits, strict=True))
        edge = ((point.detach() - low).abs() < 1e-6) | ((point.detach() - high).abs() < 1e-6)
        names = ["δ"] * self.num_precisions + ["σ"] * (len(point) - self.num_precisions)
        at_edge = tuple(sorted({name for name, hit in zip(names, edge.tolist(), strict=True) if hit}))
        precision, scale = self._split(point.detach(), noise)
        inside = gradient[~edge].abs()
        return Optimum(precision, scale, value.item(), inside.max().item() if len(inside) else 0.0, at_edge)

    def _at(self, logs: Tensor, noise: bool) -> Tensor:
        return self(*self._split(logs, noise))

    def _split(self, logs: Tensor, noise: bool) -> tuple[Tensor, Tensor]:
        precision, scale = logs[: self.num_precisions].exp(), logs[self.num_precisions :].exp()
        if not noise:
            scale = torch.ones(max(1, self.num_noises), dtype=torch.float64)
        return (precision[0] if len(precision) == 1 else precision), (scale[0] if len(scale) == 1 else scale)


def positive(value: Tensor | float, what: str) -> Tensor:
    """A number or tensor as a float64 tensor of numbers > 0."""
    tensor = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
    if not bool((tensor > 0).all()):
        raise InputError(f"{what}: expected numbers > 0; got {tensor.min().item():g}.")
    return tensor.double()
