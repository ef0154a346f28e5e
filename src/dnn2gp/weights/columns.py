"""Many classes: the curvature Λ of softmax from a few of its columns, drawn at random and unbiased.

With p = softmax(f), the gradients of the loss for the labels j = 1 … K give

    Λ = diag(p) − p pᵀ = Σ_j t_j t_jᵀ ,      t_j = √p_j (e_j − p) .

Of these K columns, c are drawn without replacement. Column j is among them with probability π_j and is divided by √π_j,
so that E[S Sᵀ] = Λ for the N × K × c roots S. The probabilities are

    π_j = min(1, a ‖t_j‖²) ,      Σ_j π_j = c ,

so that the trace of S Sᵀ is that of Λ in every draw, and columns that matter most are always there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.likelihoods import CategoricalLikelihood, Likelihood
from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import seed_number, whole_number

MANY_CLASSES = 64
"""With more classes than this, messages name `SampledColumns`, and with it, leave-one-out uses `TopClasses()`."""
# The constants of splitmix64, as signed integers.
_STEP, _FIRST, _SECOND = (each - 2**64 for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@final
@dataclass(frozen=True)
class SampledColumns:
    """convert(..., columns=SampledColumns(16)): c columns per example in place of K − 1, for many classes.

    Products with the data, and the size of function space, shrink by a factor of K / c. With c ≥ K − 1, nothing is
    drawn, and the posterior is that without this option.
    """

    num_columns: int = 16
    """c."""
    seed: int = 0
    """What is drawn for an example depends on the seed, its position in the data, and its outputs alone."""

    def __post_init__(self) -> None:
        whole_number("num_columns", self.num_columns)
        seed_number("seed", self.seed)

    def state(self) -> dict[str, int]:
        """The options, for a file."""
        return asdict(self)

    @staticmethod
    def restored(state: Mapping[str, Any]) -> SampledColumns:
        """The inverse of `state`."""
        return SampledColumns(**state)

    def rank(self, num_outputs: int) -> int:
        """The number of columns of a root for K outputs: c, or K − 1 if that is not more."""
        return min(self.num_columns, num_outputs - 1)

    def check(self, likelihood: Likelihood) -> None:
        """Refuse a likelihood whose Λ is not that of softmax."""
        if not isinstance(likelihood, CategoricalLikelihood):
            raise InputError(
                f"columns: expected a CategoricalLikelihood, whose curvature has a column per class; got "
                f"{type(likelihood).__name__}. Leave columns= out: the curvature of this likelihood is not sampled."
            )

    def root(self, likelihood: Likelihood, outputs: Float[Tensor, "N K"], first: int = 0) -> Float[Tensor, "N K C"]:
        """S with E[S Sᵀ] = Λ, for examples whose positions in the data begin with `first`."""
        self.check(likelihood)
        num_examples, K = outputs.shape
        if self.num_columns >= K - 1:
            return likelihood.noise_precision_root(outputs)
        p = likelihood.mean(outputs.double())
        ordered, order = column_sizes(p).sort(dim=1, descending=True, stable=True)
        probabilities = inclusion(ordered, self.num_columns)
        picks, weights = drawn(probabilities, uniforms(self.seed, first, num_examples, p.device), self.num_columns)
        labels = order.gather(1, picks)
        scales = (weights * p.gather(1, labels).sqrt()).to(outputs.dtype)
        columns = [
            likelihood.residual(outputs, label) * scale[:, None]
            for label, scale in zip(labels.unbind(1), scales.unbind(1), strict=True)
        ]
        return torch.stack(columns, 2)


def many_classes_words(likelihood: Likelihood, num_outputs: int) -> str:
    """How to need less memory and time with many classes, for the end of a sentence; empty with few."""
    if not isinstance(likelihood, CategoricalLikelihood) or num_outputs <= MANY_CLASSES:
        return ""
    return f": with {num_outputs} classes, columns=SampledColumns(16) takes 16 columns per example in place of all"


def column_sizes(p: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """‖t_j‖² = p_j [(1 − p_j)² + Σ_{i≠j} p_i²], without a difference of nearly equal numbers where p_j is near 1."""
    top = p.argmax(1, keepdim=True)
    others = p.scatter(1, top, 0.0)
    squares = p.square().sum(1, keepdim=True) - p.square() + (1 - p).square()
    own = others.sum(1, keepdim=True).square() + others.square().sum(1, keepdim=True)
    return p * squares.scatter(1, top, own)


def inclusion(ordered: Float[Tensor, "N K"], count: int) -> Float[Tensor, "N K"]:
    """π_j = min(1, a q_j) with Σ_j π_j = `count`, for sizes q in descending order; fewer if the others are zero."""
    places = torch.arange(ordered.shape[1], device=ordered.device)
    tail = ordered.flip(1).cumsum(1).flip(1)
    certain = ((count - places) * ordered <= tail).int().argmax(1, keepdim=True)  # the first place where a q_j ≤ 1
    left = tail.gather(1, certain)
    rate = torch.where(left > 0, (count - certain) / left, 0.0)
    return torch.where(places < certain, 1.0, (rate * ordered).clamp(max=1.0))


def drawn(
    probabilities: Float[Tensor, "N K"], uniform: Float[Tensor, " N"], count: int
) -> tuple[Int[Tensor, "N C"], Float[Tensor, "N C"]]:
    """Systematic sampling: which places are drawn, and 1/√π of each, or 0 where nothing is left to draw.

    Place j is drawn if one of the points u, u + 1, u + 2, … is between π_1 + … + π_{j−1} and π_1 + … + π_j.
    """
    ends = probabilities.cumsum(1)
    points = uniform[:, None] + torch.arange(count, device=ends.device)
    picks = torch.searchsorted(ends, points, right=True)
    there = picks < ends.shape[1]
    picks = picks.clamp(max=ends.shape[1] - 1)
    return picks, torch.where(there, probabilities.gather(1, picks).rsqrt(), 0.0)


def uniforms(seed: int, first: int, count: int, device: torch.device) -> Float[Tensor, " N"]:
    """One number between 0 and 1 per position in the data, by splitmix64: the same for every division into chunks."""
    positions = torch.arange(first + 1, first + count + 1, dtype=torch.int64, device=device)
    mixed = _mixed(_mixed(torch.full_like(positions, seed) * _STEP) + positions * _STEP)
    return (((mixed >> 11) & (2**53 - 1)).double() + 0.5) * 2.0**-53


def _mixed(x: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """splitmix64's finaliser, with logical shifts of signed integers; products wrap around."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Int[Tensor, " N"], bits: int) -> Int[Tensor, " N"]:
    return (x >> bits) & (2 ** (64 - bits) - 1)
