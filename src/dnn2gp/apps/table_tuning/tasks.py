"""Regression and classification: the likelihood, the errors, and predictions in the units of the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import erf, log, nan, pi, sqrt
from typing import ClassVar, final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from dnn2gp import plots
from dnn2gp.apps.tables import ClassTarget, NumberTarget, Target
from dnn2gp.inference.metrics import accuracy, ece, nll
from dnn2gp.inference.predictive import Predictive
from dnn2gp.likelihoods import CategoricalLikelihood, GaussianLikelihood, Likelihood

LEVEL = 0.9
"""The level of the intervals that are written."""
_QUANTILE = 1.6448536269514722
"""The quantile of N(0, 1) at ½ + LEVEL / 2."""


@dataclass(frozen=True)
class Calibration:
    """How well the predicted uncertainties match the errors on the test rows."""

    picture: Figure
    words: str


class Task(ABC):
    """What a network is trained for: one kind of target."""

    error_label: ClassVar[str]
    short_label: ClassVar[str]
    constant: ClassVar[str]
    """The prediction that ignores the columns, in words."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """The number of outputs of the network."""

    @property
    @abstractmethod
    def likelihood(self) -> Likelihood:
        """The likelihood; in a regression σ is to be tuned."""

    @abstractmethod
    def noise(self, likelihood: Likelihood | None) -> dict[str, float]:
        """`sigma` in the units of the target, NaN without a likelihood; empty in a classification."""

    @abstractmethod
    def scores(self, predictive: Predictive, targets: Tensor) -> dict[str, float]:
        """`error`, and `log_likelihood`: the mean log predictive density per row, in the units of the target."""

    @abstractmethod
    def constant_error(self, training: Tensor, held_out: Tensor) -> float:
        """The error of the prediction that ignores the columns."""

    @abstractmethod
    def frame(self, predictive: Predictive) -> pd.DataFrame:
        """The predictions as a data frame, in the units of the target."""

    @abstractmethod
    def calibration(self, predictive: Predictive, targets: Tensor) -> Calibration:
        """The calibration on the test rows."""


@final
@dataclass(frozen=True)
class Regression(Task):
    """y = mean + scale · z, with z ~ N(f, σ²)."""

    target: NumberTarget
    error_label: ClassVar[str] = "root mean squared error"
    short_label: ClassVar[str] = "RMSE"
    constant: ClassVar[str] = "always predicting the mean"

    @property
    def num_outputs(self) -> int:
        return self.target.num_outputs

    @property
    def likelihood(self) -> Likelihood:
        return GaussianLikelihood()

    def noise(self, likelihood: Likelihood | None) -> dict[str, float]:
        """The noise of y, which is `scale` times the noise of z."""
        own = likelihood.sigma.item() if isinstance(likelihood, GaussianLikelihood) else nan
        return {"sigma": self.target.scale * own}

    def scores(self, predictive: Predictive, targets: Tensor) -> dict[str, float]:
        """√ mean (y − E y)², and mean log N(y | E y, Var y)."""
        z, variance = (targets - predictive.mean).double(), predictive.variance.double()
        density = -0.5 * (z.square() / variance + variance.log() + log(2 * pi)) - log(self.target.scale)
        error = self.target.scale * z.square().mean().sqrt().item()
        return {"error": error, "log_likelihood": density.mean().item()}

    def constant_error(self, training: Tensor, held_out: Tensor) -> float:
        return self.target.scale * (held_out - training.mean()).square().mean().sqrt().item()

    def frame(self, predictive: Predictive) -> pd.DataFrame:
        """The mean, the standard deviation with and without noise, and the central 90 % interval."""
        scale = self.target.scale
        mean = self.target.mean + scale * predictive.mean[:, 0].numpy()
        std = scale * predictive.std[:, 0].numpy()
        epistemic = scale * predictive.epistemic[:, 0].sqrt().numpy()
        edge = _QUANTILE * std
        columns = {"mean": mean, "std": std, "epistemic_std": epistemic, "lower": mean - edge, "upper": mean + edge}
        return pd.DataFrame(columns)

    def calibration(self, predictive: Predictive, targets: Tensor) -> Calibration:
        """The coverage of central intervals at levels from 5 % to 95 %."""
        z = ((targets - predictive.mean) / predictive.std)[:, 0].numpy()
        pit = np.array([0.5 * (1 + erf(value / sqrt(2))) for value in z])
        levels = np.linspace(0.05, 0.95, 19)
        observed = [float((np.abs(2 * pit - 1) <= level).mean()) for level in levels]
        inside = float((np.abs(z) <= _QUANTILE).mean())
        words = f"{inside:.0%} of the {len(z)} test targets are inside their {LEVEL:.0%} intervals."
        return Calibration(plots.coverage(levels, observed, len(z), pit=pit), words)


@final
@dataclass(frozen=True)
class Classification(Task):
    """Class probabilities softmax(f), averaged over the posterior of f by the probit approximation."""

    target: ClassTarget
    error_label: ClassVar[str] = "share of misclassified rows"
    short_label: ClassVar[str] = "error rate"
    constant: ClassVar[str] = "always predicting the most frequent class"

    @property
    def num_outputs(self) -> int:
        return self.target.num_outputs

    @property
    def likelihood(self) -> Likelihood:
        return CategoricalLikelihood()

    def noise(self, likelihood: Likelihood | None) -> dict[str, float]:
        return {}

    def scores(self, predictive: Predictive, targets: Tensor) -> dict[str, float]:
        """The error rate, and the mean of log p(y)."""
        probabilities = predictive.probabilities
        return {"error": 1 - accuracy(probabilities, targets), "log_likelihood": -nll(probabilities, targets)}

    def constant_error(self, training: Tensor, held_out: Tensor) -> float:
        return (held_out != training.mode().values).double().mean().item()

    def frame(self, predictive: Predictive) -> pd.DataFrame:
        """The most probable class, and the probability of every class."""
        probabilities = predictive.probabilities.numpy()
        best = [self.target.classes[position] for position in probabilities.argmax(1)]
        columns = {f"p_{name}": probabilities[:, k] for k, name in enumerate(self.target.classes)}
        return pd.DataFrame({"class": best, **columns})

    def calibration(self, predictive: Predictive, targets: Tensor) -> Calibration:
        """A reliability diagram and the expected calibration error."""
        probabilities = predictive.probabilities
        confidence, chosen = probabilities.max(-1)
        error = ece(probabilities, targets, num_bins=10)
        right = (chosen == targets).double().mean().item()
        words = (
            f"{right:.1%} of the {len(targets)} test rows are classified correctly; the mean confidence is "
            f"{confidence.mean().item():.1%}. The expected calibration error is {error:.3f}."
        )
        return Calibration(plots.reliability(confidence.numpy(), (chosen == targets).numpy(), ece=error), words)


def task_of(target: Target) -> Task:
    """The task that predicts this target."""
    if isinstance(target, NumberTarget):
        return Regression(target)
    assert isinstance(target, ClassTarget)
    return Classification(target)
