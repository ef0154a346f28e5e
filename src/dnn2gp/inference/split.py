"""The classes of each input split into the most probable ones, T, and all others, R: see `top_classes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.inference.quasi_random import for_all_calls

NUM_PROBES = 8
"""Random signs from which the variance within R is estimated; the same in every call."""


@final
@dataclass(frozen=True, eq=False)
class Split:
    """T and what is known about R."""

    classes: Int[Tensor, "N m"]
    """T, the most probable class first."""
    variance: Float[Tensor, " N"]
    """v = Σ_{j∈R} w_j Var(f_j − g), with w the shares of the classes in R and g = Σ_{j∈R} w_j f_j."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Split:
        """With both tensors changed in the same way."""
        return Split(change(self.classes), change(self.variance))

    def scaled(self, factor: float | Float[Tensor, ""]) -> Split:
        """With the variances multiplied."""
        return replace(self, variance=self.variance * factor)

    def others(self, mean: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """The logits of R, and −∞ for T."""
        return mean.scatter(1, self.classes, -torch.inf)

    def reduced(self, mean: Float[Tensor, "N K"]) -> Float[Tensor, "N C"]:
        """The means of the m + 1 logits: those of T, and E log Σ_{j∈R} e^{f_j} − (g − E g)."""
        others = self.others(mean)
        entropies = _entropy(others.softmax(1))
        rest = others.logsumexp(1) + excess(self.variance.to(mean.dtype), entropies)
        return torch.cat([mean.gather(1, self.classes), rest[:, None]], 1)


def functionals(mean: Float[Tensor, "N K"], classes: Int[Tensor, "N m"]) -> Float[Tensor, "N K q"]:
    """e_T, w, and for each probe z the signs z_j √w_j of the classes of R, less their sum times w.

    The variance of the last ones is v on average over the signs, and a constant added to all logits changes none.
    """
    count = classes.shape[1]
    chosen = mean.new_zeros(*mean.shape, count).scatter(1, classes.unsqueeze(1), 1.0)
    logs = mean.scatter(1, classes, -torch.inf).log_softmax(1).unsqueeze(2)
    shares, signed = logs.exp(), (logs / 2).exp() * _signs(mean.shape[1]).to(mean)
    return torch.cat([chosen, shares, signed - signed.sum(1, keepdim=True) * shares], 2)


def split_of(covariance: Float[Tensor, "N q q"], classes: Int[Tensor, "N m"]) -> tuple[Float[Tensor, "N C C"], Split]:
    """The covariance of the m + 1 logits, and v, from that of the functionals."""
    count = classes.shape[1] + 1
    variances = covariance.diagonal(dim1=1, dim2=2)[:, count : count + NUM_PROBES]
    return covariance[:, :count, :count], Split(classes, variances.mean(1))


def excess(variance: Float[Tensor, " N"], entropy: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """E log Σ_j w_j e^{d_j} for independent d_j ~ N(0, v): v/2 up to the entropy H of w, then √(2vH) − H.

    Derrida's random energy model, for many classes: with a larger variance, the largest d_j alone matters.
    """
    small = variance <= 2 * entropy
    large = torch.where(small, 1.0, variance * entropy).clamp(min=torch.finfo(variance.dtype).tiny)
    return torch.where(small, variance / 2, (2 * large).sqrt() - entropy)


def _entropy(shares: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
    kept = torch.where(shares > 0, shares, 1)
    return -(kept * kept.log()).sum(1)


@lru_cache(maxsize=8)
def _signs(num_outputs: int) -> Float[Tensor, "K s"]:
    with for_all_calls():
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, 2, (num_outputs, NUM_PROBES), generator=generator).double() * 2 - 1
