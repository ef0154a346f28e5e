"""How well a prediction of f does on known targets, in the numbers that users compare: NLL, accuracy, calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dnn2gp.inference.averages import ClassAverages, averages
from dnn2gp.inference.calibration import NONE, Calibration
from dnn2gp.inference.intervals import poisson_cdf
from dnn2gp.inference.metrics import accuracy, ece
from dnn2gp.inference.split import Split
from dnn2gp.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
)

LEVEL = 0.9
"""Of the intervals whose coverage is measured."""
_POINTS = 512
"""Points of an average over f: enough for a mean over examples, and faster than the prediction itself."""
_COUNTS = 500
"""Examples on which the coverage of counts is measured, because each takes four integrals."""


@final
@dataclass(frozen=True)
class Scores:
    """Of a prediction, on some examples; None for what its likelihood or its targets do not have."""

    nll: float
    """−(1/N) Σ log p(yᵢ), in nats per example; for several outputs, that of all of them together."""
    accuracy: float | None = None
    """The share of correct classes, for classification with hard labels; for binary outputs, of all outputs."""
    confidence: float | None = None
    """The mean probability of the predicted class."""
    ece: float | None = None
    """The expected calibration error of the predicted classes, in 15 bins."""
    rmse: float | None = None
    """The root mean square error of E f, for Gaussian noise, in units of the targets."""
    coverage: float | None = None
    """The share of targets inside their 90 % intervals, noise included, for Gaussian noise and counts (500 of them)."""


@final
@dataclass(frozen=True, eq=False)
class Forecast:
    """f ~ N(m, V) for each of n examples; without V, f is known, as for a network."""

    likelihood: Likelihood
    mean: Float[Tensor, "n K"]
    covariance: Float[Tensor, "n C C"] | None = None
    calibration: Calibration = NONE
    split: Split | None = None
    """The classes whose covariance is known, if there are many."""

    def scored(self, targets: Shaped[Tensor, "n ..."]) -> tuple[Scores, Float[Tensor, " n"]]:
        """Its scores, and log p(y) of each example."""
        y = targets.double() if targets.is_floating_point() else targets
        likelihood = self.calibration.applied_to(self.likelihood)
        if isinstance(likelihood, CategoricalLikelihood):
            return self._of_classes(y)
        log_prob = self._log_prob(y)
        nll = -log_prob.mean().item()
        if isinstance(likelihood, BernoulliLikelihood):
            return self._of_binary(nll, y), log_prob
        if isinstance(likelihood, GaussianLikelihood):
            rmse = (y - self._mean).square().mean().sqrt().item()
            spread = (self._variance + likelihood.covariance(self._mean).diagonal(dim1=1, dim2=2)).sqrt()
            inside = (y - self._mean).abs() <= spread * torch.special.ndtri(spread.new_tensor(0.5 * (1 + LEVEL)))
            return Scores(nll, rmse=rmse, coverage=inside.double().mean().item()), log_prob
        if isinstance(likelihood, PoissonLikelihood):
            return Scores(nll, coverage=self._of_counts(y)), log_prob
        return Scores(nll), log_prob

    @property
    def _mean(self) -> Float[Tensor, "n K"]:
        return self.mean.double() / self.calibration.temperature

    @property
    def _variance(self) -> Float[Tensor, "n K"]:
        """Of each output, calibrated."""
        if self.covariance is None:
            return torch.zeros_like(self.mean, dtype=torch.float64)
        scale = self.calibration.scale / self.calibration.temperature**2
        return scale * self.covariance.double().diagonal(dim1=1, dim2=2)

    def _log_prob(self, y: Tensor) -> Float[Tensor, " n"]:
        if self.covariance is None:
            return self.calibration.applied_to(self.likelihood).log_prob(self._mean, y)
        own = self.calibration
        found = averages(self.likelihood, self.mean, self.covariance, _POINTS, self.split)
        return found.scaled(own.scale, own.temperature, own.noise).log_prob(y)

    def _probabilities(self) -> Float[Tensor, "n K"]:
        if self.covariance is None:
            return self.likelihood.mean(self._mean)
        found = averages(self.likelihood, self.mean, self.covariance, _POINTS, self.split)
        assert isinstance(found, ClassAverages)
        scaled = found.scaled(self.calibration.scale, self.calibration.temperature)
        assert isinstance(scaled, ClassAverages)
        return scaled.probabilities()

    def _of_counts(self, y: Float[Tensor, "n K"]) -> float:
        """Between the quantiles (1 ∓ level)/2: P(≤ y) ≥ (1 − level)/2 and P(≤ y − 1) < (1 + level)/2."""
        index = torch.linspace(0, len(y) - 1, min(_COUNTS, len(y)), device=y.device).round().long()
        y, mean, std = y[index], self._mean[index], self._variance[index].clamp(min=0).sqrt()

        def at_most(count: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
            known = self.covariance is None
            return torch.special.gammaincc(count + 1, mean.exp()) if known else poisson_cdf(count, mean, std)

        below = torch.where(y > 0, at_most((y - 1).clamp(min=0)), 0.0)
        inside = (at_most(y) >= 0.5 * (1 - LEVEL)) & (below < 0.5 * (1 + LEVEL))
        return inside.double().mean().item()

    def _of_classes(self, y: Shaped[Tensor, " n"]) -> tuple[Scores, Float[Tensor, " n"]]:
        """From one average over f, unless a probability underflows."""
        p = self._probabilities()
        own = p.gather(1, y.unsqueeze(1)).squeeze(1)
        log_prob = own.log() if bool((own > 0).all()) else self._log_prob(y)
        return _classification(-log_prob.mean().item(), p, y), log_prob

    def _of_binary(self, nll: float, y: Float[Tensor, "n K"]) -> Scores:
        """Each output is a choice between two classes; soft labels have no accuracy."""
        if not bool(((y == 0) | (y == 1)).all()):
            return Scores(nll)
        p = self._probabilities().flatten()
        return _classification(nll, torch.stack([1 - p, p], 1), y.flatten().long())


def constant_nll(likelihood: Likelihood, targets: Shaped[Tensor, "n ..."], num_outputs: int) -> float | None:
    """The NLL of the best prediction that ignores the inputs; None where there is none.

    Classes: n_y / (N − 1 + K), the frequency among the other examples with one more example of each class. Gaussian
    noise: N(ȳ, s²) of each output, from N ≥ 3 targets that are not all the same. Counts: the mean count.
    """
    count = len(targets)
    if isinstance(likelihood, CategoricalLikelihood):
        same = torch.bincount(targets, minlength=num_outputs)[targets]
        return -(same / (count - 1 + num_outputs)).double().log().mean().item()
    y = targets.double()
    if isinstance(likelihood, BernoulliLikelihood) and bool(((y == 0) | (y == 1)).all()):
        same = torch.where(y == 1, y.sum(0), (1 - y).sum(0))
        return -(same / (count + 1)).log().sum(1).mean().item()
    if isinstance(likelihood, GaussianLikelihood) and count >= 3 and bool((y.std(0) > 0).all()):
        every = torch.distributions.Normal(y.mean(0), y.std(0))
        return -every.log_prob(y).sum(1).mean().item()
    if isinstance(likelihood, PoissonLikelihood) and bool((y.mean(0) > 0).all()):
        return -torch.distributions.Poisson(y.mean(0)).log_prob(y).sum(1).mean().item()
    return None


def _classification(nll: float, p: Float[Tensor, "n K"], labels: Shaped[Tensor, " n"]) -> Scores:
    return Scores(nll, accuracy(p, labels), p.amax(1).mean().item(), ece(p, labels))
