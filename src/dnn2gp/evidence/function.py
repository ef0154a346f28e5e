"""The log marginal likelihood as a function of δ and σ at fixed features, and where it is largest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.support.errors import InputError

RANGE = (1e-8, 1e8)
"""Multiples of the prior precision, and of the noise variance, that `maximise` looks at."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where the evidence is largest: multiples of δ and σ, and what was found there."""

    precision_scale: Float[Tensor, " *L"]
    """c of the prior precision c δ₀: one number, or one per layer."""
    noise_scale: Float[Tensor, " *K"]
    """s of the noise s σ₀: one number, or one per output; 1 where it was not tuned."""
    value: float
    """The log evidence there."""
    gradient: float
    """The largest entry of its gradient with respect to log c and log s, where they are not at an edge."""
    at_edge: tuple[str, ...]
    """"δ" or "σ" where the largest value lies at the edge of the range: the evidence then has no maximum in it."""


class EvidenceFunction(ABC):
    """log p(D | c δ₀, s σ₀): differentiable, without sampling, and exact at fixed features."""

    num_precisions: int
    """The number of values c that it takes: 1, or one per layer."""
    num_noises: int
    """The number of values s that it takes: 0 unless the likelihood is Gaussian, else 1 or one per output."""

    @abstractmethod
    def __call__(
        self, precision_scale: Float[Tensor, "..."] | float, noise_scale: Float[Tensor, "..."] | float = 1.0
    ) -> Float[Tensor, ""]:
        """The log evidence."""

    @abstractmethod
    def start(self, precision: bool, noise: bool, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """The initial (c, s): the best point of a coarse grid over the range of those that are tuned."""

    @torch.inference_mode(False)
    def maximise(
        self,
        *,
        precision: bool = True,
        noise: bool = True,
        bounds: tuple[float, float] = RANGE,
    ) -> Optimum:
        """The largest evidence over log c, if `precision`, and log s, if `noise`, by L-BFGS with exact gradients.

        `bounds` are those of c and of s², relative to the model's own δ₀ and σ₀².
        """
        from scipy.optimize import minimize  # takes a while to import

        noise = noise and self.num_noises > 0
        if not precision and not noise:
            raise InputError(
                "maximise: expected precision=True, or noise=True for a regression; got neither, so there is "
                "nothing to tune."
            )
        ones = torch.ones(max(1, self.num_noises), dtype=torch.float64)
        first, second = self.start(precision, noise, bounds)
        whole = torch.cat([first.double().expand(self.num_precisions), second.double() * ones]).log()
        free = torch.tensor([precision] * self.num_precisions + [noise] * len(ones))
        edges = torch.tensor(bounds, dtype=torch.float64).log()
        limits = torch.cat([edges.expand(self.num_precisions, 2), (edges / 2).expand(len(ones), 2)])
        limits = self.limits(whole, limits)[free]

        def at(logs: Tensor) -> Tensor:
            return self(*self._split(whole.masked_scatter(free, logs)))

        def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
            logs = torch.tensor(point, dtype=torch.float64, requires_grad=True)
            with torch.enable_grad():
                value = at(logs)
                (gradient,) = torch.autograd.grad(value, logs)
            return -value.item(), -gradient.numpy()

        options = {"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9}
        inside = torch.clamp(whole[free], limits[:, 0], limits[:, 1])
        found = minimize(negative, inside.numpy(), jac=True, method="L-BFGS-B", bounds=limits.tolist(), options=options)
        point = torch.tensor(found.x, dtype=torch.float64)
        edge = ((point[:, None] - limits).abs() < 1e-6).any(1)
        names = [name for name, tuned in zip(self._names, free.tolist(), strict=True) if tuned]
        at_edge = tuple(sorted({name for name, hit in zip(names, edge.tolist(), strict=True) if hit}))
        gradient = torch.tensor(found.jac, dtype=torch.float64)[~edge].abs()
        chosen = self._split(whole.masked_scatter(free, point))
        return Optimum(*chosen, -float(found.fun), gradient.max().item() if len(gradient) else 0.0, at_edge)

    def limits(self, begin: Float[Tensor, " n"], limits: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """The range of log c and log s to search in, from `begin`; here, the whole range."""
        return limits

    @property
    def _names(self) -> list[str]:
        return ["δ"] * self.num_precisions + ["σ"] * max(1, self.num_noises)

    def _split(self, logs: Tensor) -> tuple[Tensor, Tensor]:
        precision, scale = logs[: self.num_precisions].exp(), logs[self.num_precisions :].exp()
        return (precision[0] if len(precision) == 1 else precision), (scale[0] if len(scale) == 1 else scale)


def positive(value: Tensor | float, what: str) -> Tensor:
    """A number or tensor as a float64 tensor of numbers > 0."""
    tensor = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
    if not bool((tensor > 0).all()):
        raise InputError(f"{what}: expected numbers > 0; got {tensor.min().item():g}.")
    return tensor.double()
