"""Σᵢ ∇²ℓᵢ(w) in three ways, with the gradient and the loss from the same pass, for a step of online Newton.

GaussNewton        Σᵢ Jᵢᵀ Λᵢ Jᵢ                    Eq. (7)
EmpiricalFisher    Σᵢ gᵢ gᵢᵀ,  gᵢ = Jᵢᵀ rᵢ         per-example gradients, as in VOGN
ExactHessian       Σᵢ Jᵢᵀ Λᵢ Jᵢ + (∇² f)ᵢ rᵢ       Eq. (6), for small networks
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import NetworkFeatures
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.data import Data
from dnn2gp.support.errors import NetworkError
from dnn2gp.support.memory import require
from dnn2gp.support.processes import Team


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Sums over M examples: the loss, log p, the gradient, and the curvature (its diagonal P, or P × P)."""

    count: int
    """M."""
    loss: Float[Tensor, ""]
    log_likelihood: Float[Tensor, ""]
    gradient: Float[Tensor, " P"]
    curvature: Float[Tensor, "P *P"]

    def plus(self, other: Evaluation) -> Evaluation:
        """The sums over both sets of examples."""
        return Evaluation(
            self.count + other.count,
            self.loss + other.loss,
            self.log_likelihood + other.log_likelihood,
            self.gradient + other.gradient,
            self.curvature + other.curvature,
        )

    def over(self, team: Team) -> Evaluation:
        """The sums over the examples of all processes, with one all-reduce of 3 + 2P numbers (or 3 + P + P²)."""
        if team.size == 1:
            return self
        count = self.loss.new_tensor(self.count)
        parts = [count, self.loss, self.log_likelihood, self.gradient, self.curvature]
        total = team.sum(torch.cat([part.double().flatten() for part in parts]))
        found = total.split([part.numel() for part in parts])
        count, *sums = (value.reshape(part.shape) for value, part in zip(found, parts, strict=True))
        return Evaluation(int(count.item()), *sums)

    @staticmethod
    def mean(several: list[Evaluation]) -> Evaluation:
        """The average over samples of the weights, for the same examples."""
        if len(several) == 1:
            return several[0]
        return Evaluation(
            several[0].count,
            torch.stack([each.loss for each in several]).mean(),
            torch.stack([each.log_likelihood for each in several]).mean(),
            torch.stack([each.gradient for each in several]).mean(0),
            torch.stack([each.curvature for each in several]).mean(0),
        )


class Curvature(ABC):
    """An approximation of ∇²ℓ, chosen as a value: `GaussNewton()`, `EmpiricalFisher()` or `ExactHessian()`."""

    name: ClassVar[str]

    @abstractmethod
    def evaluate(self, features: NetworkFeatures, batch: Data, likelihood: Likelihood, *, dense: bool) -> Evaluation:
        """The loss, its gradient and its curvature at the anchor of `features`, in float64.

        `dense` asks for the P × P curvature rather than its diagonal.
        """


@final
@dataclass(frozen=True)
class GaussNewton(Curvature):
    """JᵀΛJ: positive semi-definite, and exact for a network that is linear in its weights."""

    name: ClassVar[str] = "Gauss-Newton"

    def evaluate(self, features: NetworkFeatures, batch: Data, likelihood: Likelihood, *, dense: bool) -> Evaluation:
        outputs = features.outputs(batch.inputs)
        residual = likelihood.residual(outputs, batch.targets).unsqueeze(-1)
        root = likelihood.noise_precision_root(outputs, batch.targets)
        ggn = features.ggn if dense else features.ggn_diagonal
        return _evaluation(features, batch, likelihood, outputs, residual, ggn(batch.inputs, root))


@final
@dataclass(frozen=True)
class EmpiricalFisher(Curvature):
    """Σᵢ gᵢ gᵢᵀ over the gradients gᵢ of single examples: one backward pass, regardless of the number of outputs."""

    name: ClassVar[str] = "empirical Fisher"

    def evaluate(self, features: NetworkFeatures, batch: Data, likelihood: Likelihood, *, dense: bool) -> Evaluation:
        if dense:
            outputs = features.outputs(batch.inputs)
            residual = likelihood.residual(outputs, batch.targets).unsqueeze(-1)
            fisher = features.ggn(batch.inputs, residual)
            return _evaluation(features, batch, likelihood, outputs, residual, fisher)
        found: dict[int, tuple[Tensor, Tensor]] = {}  # an engine made of two parts asks for the same residuals twice

        def residuals(outputs: Float[Tensor, "n K"], part: slice) -> Float[Tensor, "n K"]:
            targets = batch.targets[part]
            found[part.start] = _losses(likelihood, outputs, targets)
            return likelihood.residual(outputs, targets)

        gradient, squares = features.gradient_moments(batch.inputs, residuals)
        loss, log_likelihood = (torch.stack(parts).sum() for parts in zip(*found.values(), strict=True))
        return Evaluation(batch.num_examples, loss, log_likelihood, gradient, squares)


@final
@dataclass(frozen=True)
class ExactHessian(Curvature):
    """∇²ℓ itself, which may be indefinite away from a minimum."""

    name: ClassVar[str] = "exact Hessian"

    def evaluate(self, features: NetworkFeatures, batch: Data, likelihood: Likelihood, *, dense: bool) -> Evaluation:
        size = features.num_weights
        require(
            4 * 8 * size**2,
            features.budget(),
            f"The exact Hessian of {size} weights",
            "For larger networks, use VOGGN or OGGN (Gauss-Newton), or VOGN or OGN (diagonal).",
        )
        outputs = features.outputs(batch.inputs)
        residual = likelihood.residual(outputs, batch.targets)
        hessian = features.ggn(batch.inputs, likelihood.noise_precision_root(outputs, batch.targets))
        eye = torch.eye(size, dtype=features.anchor.dtype, device=features.anchor.device)
        with _second_derivatives():
            second = features.residual_curvature(batch.inputs, residual, eye).double()
        _check_symmetric(second, features.anchor.dtype)
        hessian += 0.5 * (second + second.T)
        own = hessian if dense else hessian.diagonal()
        return _evaluation(features, batch, likelihood, outputs, residual.unsqueeze(-1), own)


@contextmanager
def _second_derivatives() -> Iterator[None]:
    """Name a layer that torch can differentiate only once, such as cdist."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, NotImplementedError) and "differentiate twice" not in str(error):
            raise
        raise NetworkError(
            f"network: one of its layers has no second derivatives, which the exact Hessian needs ({error}). Use "
            "VOGGN, OGGN, VOGN or OGN."
        ) from error


def _check_symmetric(second: Float[Tensor, "P P"], dtype: torch.dtype) -> None:
    """Second derivatives commute; where they do not, torch's double backward is wrong (weight_norm, for instance)."""
    gap, size = (second - second.T).abs().max().item(), second.abs().max().item()
    if not gap <= 1e4 * torch.finfo(dtype).eps * size:
        raise NetworkError(
            f"network: its second derivatives are not symmetric (they differ by {gap:.3g}, the largest is {size:.3g}): "
            "torch differentiates one of its layers wrongly, as it does with weight_norm. Remove such a layer "
            "(torch.nn.utils.parametrize.remove_parametrizations), or use VOGGN, OGGN, VOGN or OGN."
        )


def _evaluation(
    features: NetworkFeatures,
    batch: Data,
    likelihood: Likelihood,
    outputs: Float[Tensor, "N K"],
    residual: Float[Tensor, "N K 1"],
    curvature: Float[Tensor, "P *P"],
) -> Evaluation:
    gradient = features.vjp(batch.inputs, residual)[:, 0].double()
    return Evaluation(batch.num_examples, *_losses(likelihood, outputs, batch.targets), gradient, curvature)


def _losses(
    likelihood: Likelihood, outputs: Float[Tensor, "n K"], targets: Tensor
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Σ ℓᵢ and Σ log p(yᵢ | fᵢ), in float64."""
    wide = targets.double() if targets.is_floating_point() else targets
    loss = likelihood.loss(outputs.double(), wide)
    return loss.sum(), -(loss + likelihood.log_normaliser(outputs.double(), wide)).sum()
