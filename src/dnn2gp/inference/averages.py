"""Averages over f ~ N(m, C) of what a likelihood says about y: probabilities, entropies and log p(y)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from dnn2gp.inference.line_quadrature import log_average_line
from dnn2gp.inference.logistic_normal import average_entropy, log_average_sigmoid
from dnn2gp.inference.quasi_random import average_over_points, for_all_calls, principal_root
from dnn2gp.inference.split import Split
from dnn2gp.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood, Likelihood
from dnn2gp.support.errors import NotPositiveDefiniteError

POINTS = 2048
"""Points for averages in two and more dimensions."""

Number: TypeAlias = "float | Float[Tensor, '']"


def log_average(
    likelihood: Likelihood,
    mean: Float[Tensor, "N K"],
    covariance: Float[Tensor, "N K K"],
    targets: Shaped[Tensor, "N ..."],
    num_points: int = POINTS,
) -> Float[Tensor, " N"]:
    """log E[p(y_n | f)] for f ~ N(m_n, C_n), in float64; see `Averages` for many scales of one covariance."""
    return averages(likelihood, mean, covariance, num_points).log_prob(targets)


def averages(
    likelihood: Likelihood,
    mean: Float[Tensor, "N K"],
    covariance: Float[Tensor, "N C C"],
    num_points: int = POINTS,
    split: Split | None = None,
) -> Averages:
    """The averages of this likelihood, with the root of C computed once.

    With a `split`, C is the covariance of the logits of T and of one for all other classes (`top_classes`).
    """
    mean, covariance = mean.double(), covariance.double()
    if split is not None:
        return TopAverages(mean, split, softmax_root(covariance), num_points)
    if isinstance(likelihood, GaussianLikelihood):
        return GaussianAverages(likelihood, mean, covariance)
    if isinstance(likelihood, CategoricalLikelihood):
        return SoftmaxAverages.of(mean, covariance, num_points)
    root = principal_root(covariance)
    if isinstance(likelihood, BernoulliLikelihood):
        return SigmoidAverages(likelihood, mean, root, num_points)
    return GeneralAverages(likelihood, mean, root, num_points)


class Averages(ABC):
    """Averages over f ~ N(m, C), input by input, in float64 and differentiable.

    `scaled` reuses the root of C, so that a grid or a search over (a, τ) costs one eigendecomposition per input.
    """

    @abstractmethod
    def scaled(self, scale: Number = 1.0, temperature: Number = 1.0, noise: Number = 1.0) -> Averages:
        """The averages over f ~ N(m/τ, a C/τ²), with s σ for the noise of a Gaussian likelihood."""

    @abstractmethod
    def log_prob(self, targets: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """log E[p(y | f)] of each example, for targets in the canonical form of the likelihood."""

    @abstractmethod
    def take(self, part: slice) -> Averages:
        """The averages of some of the inputs."""


class ClassAverages(Averages):
    """Averages of a classifier."""

    @abstractmethod
    def probabilities(self) -> Float[Tensor, "N K"]:
        """E h(f): of each class, or of y = 1 for each binary output."""

    @abstractmethod
    def entropies(self) -> tuple[Float[Tensor, "N *K"], Float[Tensor, "N *K"]]:
        """(H(E p), E H(p)), in nats: of each input for exclusive classes, of each output for binary ones."""


@final
@dataclass(frozen=True, eq=False)
class SoftmaxAverages(ClassAverages):
    """Exclusive classes. Softmax sees the K − 1 directions in which logits differ, and the root has only those.

    Two classes are a sigmoid of the difference, in closed form; more are averaged over Sobol points.
    """

    mean: Float[Tensor, "N K"]
    root: Float[Tensor, "N K D"]
    """R with R Rᵀ = P C P, where P = I − 11ᵀ/K, and D = K − 1."""
    num_points: int

    @staticmethod
    def of(mean: Float[Tensor, "N K"], covariance: Float[Tensor, "N K K"], num_points: int) -> SoftmaxAverages:
        """With the root of C."""
        return SoftmaxAverages(mean, softmax_root(covariance), num_points)

    def scaled(self, scale: Number = 1.0, temperature: Number = 1.0, noise: Number = 1.0) -> SoftmaxAverages:
        return replace(self, mean=self.mean / temperature, root=self.root * (scale**0.5 / temperature))

    def take(self, part: slice) -> SoftmaxAverages:
        return replace(self, mean=self.mean[part], root=self.root[part])

    def log_prob(self, targets: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        if self.mean.shape[1] == 2:
            return self._log_pair().gather(-1, targets.unsqueeze(-1)).squeeze(-1)

        def value(f: Tensor, part: slice) -> tuple[Tensor, ...]:
            label = targets[part].view(-1, 1, 1).expand(-1, 1, f.shape[2])
            own = f.log_softmax(1).gather(1, label).squeeze(1)
            return (own.logsumexp(1) - math.log(f.shape[2]),)

        return average_over_points(value, self.mean, self.root, self.num_points)[0]

    def probabilities(self) -> Float[Tensor, "N K"]:
        if self.mean.shape[1] == 2:
            return self._log_pair().exp()
        return average_over_points(lambda f, _: (f.softmax(1).mean(2),), self.mean, self.root, self.num_points)[0]

    def entropies(self) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        if self.mean.shape[1] == 2:
            log_p = self._log_pair()
            return -(log_p.exp() * log_p).sum(-1), average_entropy(*self._gap()).squeeze(-1)

        def value(f: Tensor, _: slice) -> tuple[Tensor, ...]:
            log_p = f.log_softmax(1)
            p = log_p.exp()
            return entropy(p.mean(2)), -(p * log_p).sum(1).mean(1)

        of_average, expected = average_over_points(value, self.mean, self.root, self.num_points)
        return of_average, expected

    def _gap(self) -> tuple[Float[Tensor, "N 1"], Float[Tensor, "N 1"]]:
        """Mean and variance of f₁ − f₀."""
        return self.mean.diff(dim=1), self.root.diff(dim=1).squeeze(1).square()

    def _log_pair(self) -> Float[Tensor, "N 2"]:
        """log E σ(f₀ − f₁) and log E σ(f₁ − f₀)."""
        gap, variance = self._gap()
        return log_average_sigmoid(torch.cat([-gap, gap], 1), variance.expand(-1, 2))


@final
@dataclass(frozen=True, eq=False)
class TopAverages(ClassAverages):
    """Exclusive classes, of which all but the m most probable are one: they share its probability as at the mean."""

    mean: Float[Tensor, "N K"]
    split: Split
    root: Float[Tensor, "N C m"]
    """R with R Rᵀ = P C P, for the covariance C of the m + 1 logits."""
    num_points: int

    def scaled(self, scale: Number = 1.0, temperature: Number = 1.0, noise: Number = 1.0) -> TopAverages:
        factor = scale**0.5 / temperature
        split = self.split.scaled(factor**2)
        return replace(self, mean=self.mean / temperature, split=split, root=self.root * factor)

    def take(self, part: slice) -> TopAverages:
        own = self.split.each(lambda tensor: tensor[part])
        return replace(self, mean=self.mean[part], split=own, root=self.root[part])

    def log_prob(self, targets: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        same = self.split.classes == targets[:, None]
        among = same.any(1)
        place = torch.where(among, same.int().argmax(1), same.shape[1])
        own = self._others.log_softmax(1).gather(1, targets[:, None]).squeeze(1)
        return self._reduced.log_prob(place) + torch.where(among, 0.0, own)

    def probabilities(self) -> Float[Tensor, "N K"]:
        reduced = self._reduced.probabilities()
        return (reduced[:, -1:] * self._others.softmax(1)).scatter(1, self.split.classes, reduced[:, :-1])

    def entropies(self) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Those of the m + 1 classes, and what is uncertain within the last one, of probability q.

        The latter is q H(w), and on average over f q max(H(w) − v/2, 0), as in `split.excess`.
        """
        of_average, expected = self._reduced.entropies()
        share = self._reduced.probabilities()[:, -1]
        whole = entropy(self._others.softmax(1))
        within = (whole - self.split.variance.to(whole.dtype) / 2).clamp(min=0)
        return of_average + share * whole, expected + share * within

    @property
    def _others(self) -> Float[Tensor, "N K"]:
        """The logits of all other classes."""
        return self.split.others(self.mean)

    @property
    def _reduced(self) -> SoftmaxAverages:
        """The m + 1 classes."""
        return SoftmaxAverages(self.split.reduced(self.mean), self.root, self.num_points)


@final
@dataclass(frozen=True, eq=False)
class SigmoidAverages(ClassAverages):
    """Binary outputs, each in closed form; the joint probability of several is averaged over Sobol points."""

    likelihood: BernoulliLikelihood
    mean: Float[Tensor, "N K"]
    root: Float[Tensor, "N K K"]
    num_points: int

    def scaled(self, scale: Number = 1.0, temperature: Number = 1.0, noise: Number = 1.0) -> SigmoidAverages:
        return replace(self, mean=self.mean / temperature, root=self.root * (scale**0.5 / temperature))

    def take(self, part: slice) -> SigmoidAverages:
        return replace(self, mean=self.mean[part], root=self.root[part], likelihood=self.likelihood.take(part))

    def log_prob(self, targets: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
        hard = ((targets == 0) | (targets == 1)).all()
        if self.mean.shape[1] == 1 and bool(hard):
            signs = 2 * targets.double() - 1
            return log_average_sigmoid(signs * self.mean, self._variance()).squeeze(-1)
        return GeneralAverages(self.likelihood, self.mean, self.root, self.num_points).log_prob(targets)

    def probabilities(self) -> Float[Tensor, "N K"]:
        return log_average_sigmoid(self.mean, self._variance()).exp()

    def entropies(self) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N K"]]:
        variance = self._variance()
        both = [log_average_sigmoid(sign * self.mean, variance) for sign in (1, -1)]
        of_average = -(both[0].exp() * both[0] + both[1].exp() * both[1])
        return of_average, average_entropy(self.mean, variance)

    def _variance(self) -> Float[Tensor, "N K"]:
        return self.root.square().sum(-1)


@final
@dataclass(frozen=True, eq=False)
class GaussianAverages(Averages):
    """y ~ N(m, C + diag σ²), in closed form."""

    likelihood: GaussianLikelihood
    mean: Float[Tensor, "N K"]
    covariance: Float[Tensor, "N K K"]

    def scaled(self, scale: Number = 1.0, temperature: Number = 1.0, noise: Number = 1.0) -> GaussianAverages:
        scaled = self.covariance * (scale / temperature**2)
        return GaussianAverages(self.likelihood.scaled(noise), self.mean / temperature, scaled)

    def take(self, part: slice) -> GaussianAverages:
        return replace(
            self, mean=self.mean[part], covariance=self.covariance[part], likelihood=self.likelihood.take(part)
        )

    def log_prob(self, targets: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
        total = self.covariance + self.likelihood.covariance(self.mean)
        lower, info = torch.linalg.cholesky_ex(total)
        if bool((info != 0).any()):
            raise NotPositiveDefiniteError(
                "The covariance of y is not positive definite: the noise σ is lost in the rounding of the covariance "
                "of f. Use float64, a larger σ, or a larger prior precision δ."
            )
        gap = (targets.double() - self.mean).unsqueeze(-1)
        white = torch.linalg.solve_triangular(lower, gap, upper=False).squeeze(-1)
        log_det = lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * white.square().sum(-1) - log_det - 0.5 * gap.shape[1] * math.log(2 * math.pi)


@final
@dataclass(frozen=True, eq=False)
class GeneralAverages(Averages):
    """Any likelihood: quadrature over a single output, Sobol points for several."""

    likelihood: Likelihood
    mean: Float[Tensor, "N K"]
    root: Float[Tensor, "N K K"]
    num_points: int

    def scaled(self, scale: Number = 1.0, temperature: Number = 1.0, noise: Number = 1.0) -> GeneralAverages:
        return replace(self, mean=self.mean / temperature, root=self.root * (scale**0.5 / temperature))

    def take(self, part: slice) -> GeneralAverages:
        return replace(self, mean=self.mean[part], root=self.root[part], likelihood=self.likelihood.take(part))

    def log_prob(self, targets: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        targets = targets.double() if targets.is_floating_point() else targets
        if self.mean.shape[1] == 1:
            return log_average_line(self.likelihood, self.mean, self.root.squeeze(-1), targets)

        def value(f: Tensor, part: slice) -> tuple[Tensor, ...]:
            rows, repeated = f.mT.flatten(0, 1), targets[part].repeat_interleave(f.shape[2], 0)
            each = self.likelihood.log_prob(rows, repeated).unflatten(0, (-1, f.shape[2]))
            return (each.logsumexp(1) - math.log(f.shape[2]),)

        return average_over_points(value, self.mean, self.root, self.num_points)[0]


def entropy(probabilities: Float[Tensor, "*B K"]) -> Float[Tensor, "*B"]:
    """−Σ_k p_k log p_k, in nats; gradients stay finite where a probability underflows to 0."""
    kept = torch.where(probabilities > 0, probabilities, 1)
    return -(kept * kept.log()).sum(-1)


def softmax_root(covariance: Float[Tensor, "N K K"]) -> Float[Tensor, "N K K-1"]:
    """R with R Rᵀ = P C P, where P = I − 11ᵀ/K."""
    basis = _differences(covariance.shape[1]).to(covariance.device)
    size = covariance.detach().abs().amax((-2, -1))
    return basis @ principal_root(basis.mT @ covariance @ basis, size)


@lru_cache(maxsize=8)
def _differences(count: int) -> Float[Tensor, "K D"]:
    """An orthonormal basis of the vectors of K numbers whose sum is 0."""
    with for_all_calls():
        columns = torch.eye(count, dtype=torch.float64)
        columns[:, 0] = 1
        return torch.linalg.qr(columns).Q[:, 1:]
