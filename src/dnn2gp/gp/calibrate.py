"""Choosing a calibration: the scale a, the temperature τ or the noise s with the largest log p(y) of known targets."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dnn2gp.inference.averages import Averages, ClassAverages
from dnn2gp.inference.calibration import Calibration
from dnn2gp.likelihoods import BernoulliLikelihood, ClassificationLikelihood, GaussianLikelihood, Likelihood
from dnn2gp.support.memory import chunks

# Ranges of a, τ and s that are searched.
_SCALES, _TEMPERATURES, _NOISES = (1e-6, 1e2), (0.05, 20.0), (0.05, 20.0)
_STARTS = (1.0, 0.1, 0.01)
# A scale below the first of these does not affect probabilities, so the prior of log a treats it like 0.
_GUESSED, _SPREAD, _NARROW = (1e-3, 1.0), 2.0, 0.5
# For τ < 1, the prior of log τ is narrower by this factor if the network was trained on the examples.
_SHARPER = 0.25
# The mean mutual information of familiar inputs as a share of log K, and the accuracy of its log a.
_FAMILIAR, _FINE = 0.25, 0.02
# The number of examples whose NLL is differentiated at once: the graph holds all points of each.
_TOGETHER = 200
POINTS = 256
"""Points of an average while the calibration is searched."""


@final
@dataclass(frozen=True)
class Chosen:
    """A calibration and the mean negative log predictive density that it reaches, in nats per example.

    The prior of τ or s is part of it: ½ (log τ)² / N.
    """

    calibration: Calibration
    nll: float


def best_calibration(
    averages: Averages,
    targets: Shaped[Tensor, "N ..."],
    likelihood: Likelihood,
    *,
    sharper: bool = True,
    scale: float | None = None,
    guess: Calibration | None = None,
    seen: bool = False,
) -> Chosen:
    """argmin over a, and τ (classification) or s (Gaussian noise), of −(1/N) Σ log E[p(y | f)], f ~ N(m/τ, aV/τ²).

    `sharper` allows τ < 1. A given `scale` fixes a; with a = 0, this is temperature scaling. log τ and log s have the
    prior N(0, 1): without it, a few examples that are all predicted correctly would lead to τ = 0. A `guess` from other
    data replaces τ = s = 1 as the centre of this prior, whose standard deviation is then ½ (the better of ½ and 1 on
    split 0 of docs/calibration.md), and is the centre of a prior of log a with a standard deviation of 2.

    `seen` says that these are leave-one-out predictions of the training examples. The features have memorised something
    of these examples, which makes the predictions look better than they are. So below 0, the prior of log τ has a
    quarter of the standard deviation.
    """
    search = _Search(averages, targets, _second(likelihood), sharper, guess, seen)
    found = [search.run(start) for start in _STARTS] if scale is None else [search.alone(scale)]
    return min(found, key=lambda each: each.nll)


def exceeds_error(gains: Float[Tensor, " N"], errors: float) -> bool:
    """Whether the mean gain exceeds 0 by more than `errors` standard errors; that of a single gain is infinite."""
    if errors == 0:
        return gains.mean().item() > 0
    return len(gains) > 1 and gains.mean().item() > errors * gains.std().item() / len(gains) ** 0.5


def score_scale(averages: Averages, likelihood: Likelihood) -> float:
    """The largest a ≤ 1 with which familiar inputs have a mean mutual information of at most ¼ log K nats.

    The exact posterior of a network with many weights and few data may be so wide that almost every class is possible
    everywhere. Mutual information is then close to its maximum for familiar and unfamiliar inputs alike, and cannot
    tell them apart. K = 2 for binary outputs. For likelihoods without classes, the result is 1.
    """
    if not isinstance(averages, ClassAverages):
        return 1.0
    classes = 2 if isinstance(likelihood, BernoulliLikelihood) else averages.probabilities().shape[1]
    low, high = log(_SCALES[0]), 0.0

    def information(log_scale: float) -> float:
        scaled = averages.scaled(exp(log_scale))
        assert isinstance(scaled, ClassAverages)
        of_average, expected = scaled.entropies()
        return (of_average - expected).mean().item()

    if information(high) <= _FAMILIAR * log(classes):
        return 1.0
    while high - low > _FINE:
        middle = (low + high) / 2
        low, high = (low, middle) if information(middle) > _FAMILIAR * log(classes) else (middle, high)
    return exp(low)


def _second(likelihood: Likelihood) -> str | None:
    """What is chosen in addition to a."""
    if isinstance(likelihood, ClassificationLikelihood):
        return "temperature"
    return "noise" if isinstance(likelihood, GaussianLikelihood) else None


@final
@dataclass(frozen=True, eq=False)
class _Search:
    averages: Averages
    targets: Tensor
    second: str | None
    sharper: bool
    guess: Calibration | None = None
    seen: bool = False

    def run(self, start: float) -> Chosen:
        """Quasi-Newton steps in log a and log τ (or log s)."""
        from scipy.optimize import minimize

        def value(point: np.ndarray) -> tuple[float, np.ndarray]:
            logs = torch.tensor(point, dtype=torch.float64, requires_grad=True)
            total, gradient = 0.0, np.zeros(len(point))
            for part in chunks(len(self.targets), _TOGETHER):
                with torch.enable_grad():
                    nll = self._nll(logs[0].exp(), logs[1].exp() if self.second else None, part)
                    (own,) = torch.autograd.grad(nll, logs)
                total, gradient = total + nll.item(), gradient + own.numpy()
            return total, gradient

        bounds = [tuple(log(each) for each in _SCALES), *self._bounds()]
        begin = np.array([log(start), *(0.0 for _ in self._bounds())])
        found = minimize(value, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 50})
        return self._chosen(exp(found.x[0]), exp(found.x[1]) if self.second else None, float(found.fun))

    def alone(self, scale: float) -> Chosen:
        """With a fixed: the best τ or s by Brent's method."""
        from scipy.optimize import minimize_scalar

        def value(point: float) -> float:
            with torch.no_grad():
                return self._nll(scale, exp(point)).item()

        if self.second is None:
            with torch.no_grad():
                return self._chosen(scale, None, self._nll(scale, None).item())
        found = minimize_scalar(value, bounds=self._bounds()[0], method="bounded", options={"xatol": 1e-3})
        return self._chosen(scale, exp(found.x), float(found.fun))

    def _bounds(self) -> list[tuple[float, float]]:
        if self.second is None:
            return []
        low, high = _TEMPERATURES if self.second == "temperature" else _NOISES
        return [(log(low) if self.sharper else 0.0, log(high))]

    def _nll(self, scale: Tensor | float, second: Tensor | float | None, part: slice | None = None) -> Tensor:
        """What some examples contribute to the penalised mean NLL; by default, all of it."""
        settings = {} if self.second is None or second is None else {self.second: second}
        averages, targets = self.averages, self.targets
        if part is not None:
            averages, targets = averages.take(part), targets[part]
        nll = -averages.scaled(scale, **settings).log_prob(targets).sum()
        share = len(targets) / len(self.targets)
        return (nll + share * self._penalty(scale, second)) / len(self.targets)

    def _penalty(self, scale: Tensor | float, second: Tensor | float | None) -> Tensor | float:
        """The negative log prior of the settings."""
        total: Tensor | float = 0.0
        if self.second is not None and second is not None:
            centre = 1.0 if self.guess is None else getattr(self.guess, self.second)
            spread = 1.0 if self.guess is None else _NARROW
            gap = torch.as_tensor(second).log() - log(centre)
            if self.seen and self.second == "temperature":  # differentiable at 0
                gap = gap.clamp(min=0) + gap.clamp(max=0) / _SHARPER
            total = total + 0.5 * (gap / spread).square()
        if self.guess is not None:
            low, high = _GUESSED
            gap = torch.as_tensor(scale).clamp(min=low).log() - log(min(high, max(low, self.guess.scale)))
            total = total + 0.5 * (gap / _SPREAD).square()
        return total

    def _chosen(self, scale: float, second: float | None, nll: float) -> Chosen:
        settings = {} if self.second is None or second is None else {self.second: second}
        return Chosen(Calibration(scale, **settings), nll)
