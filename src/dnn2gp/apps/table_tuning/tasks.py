"""Numbers or classes: the likelihood, the errors, and predictions in the units of the target."""

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
"""Of the intervals that are written."""
_QUANTILE = 1.6448536269514722
"""Of N(0, 1) at ½ + LEVEL / 2."""


@dataclass(frozen=True)
class Calibration:
    """How well the model knows its own errors, on rows held out."""

    picture: Figure
    words: str


class Task(ABC):
    """What is asked of a network, for one target."""

    error_label: ClassVar[str]
    short_label: ClassVar[str]
    without: ClassVar[str]
    """What predicts without looking at the columns."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Of the network."""

    @property
    @abstractmethod
    def likelihood(self) -> Likelihood:
        """With σ open in a regression."""

    @abstractmethod
    def noise(self, likelihood: Likelihood | None) -> dict[str, float]:
        """`sigma` in the units of the target, NaN without a likelihood; nothing for classes."""

    @abstractmethod
    def scores(self, predictive: Predictive, targets: Tensor) -> dict[str, float]:
        """`error`, and `log_likelihood`: the mean log predictive density of a row, in the units of the target."""

    @abstractmethod
    def ignorance(self, training: Tensor, held_out: Tensor) -> float:
        """The error of a prediction that does not look at the columns."""

    @abstractmethod
    def frame(self, predictive: Predictive) -> pd.DataFrame:
        """The predictions of all rows, in the units of the target."""

    @abstractmethod
    def calibration(self, predictive: Predictive, targets: Tensor) -> Calibration:
        """On rows that were held out."""


@final
@dataclass(frozen=True)
class Regression(Task):
    """y = mean + scale · z, with z ~ N(f, σ²)."""

    target: NumberTarget
    error_label: ClassVar[str] = "root mean squared error"
    short_label: ClassVar[str] = "RMSE"
    without: ClassVar[str] = "always the mean:"

    @property
    def num_outputs(self) -> int:
        """One."""
        return self.target.num_outputs

    @property
    def likelihood(self) -> Likelihood:
        """Gaussian, σ open."""
        return GaussianLikelihood()

    def noise(self, likelihood: Likelihood | None) -> dict[str, float]:
        """σ of y, which is `scale` times that of z."""
        own = likelihood.sigma.item() if isinstance(likelihood, GaussianLikelihood) else nan
        return {"sigma": self.target.scale * own}

    def scores(self, predictive: Predictive, targets: Tensor) -> dict[str, float]:
        """√ mean (y − E y)², and mean log N(y | E y, Var y)."""
        z, variance = (targets - predictive.mean).double(), predictive.variance.double()
        density = -0.5 * (z.square() / variance + variance.log() + log(2 * pi)) - log(self.target.scale)
        error = self.target.scale * z.square().mean().sqrt().item()
        return {"error": error, "log_likelihood": density.mean().item()}

    def ignorance(self, training: Tensor, held_out: Tensor) -> float:
        """Of the mean of the training rows."""
        return self.target.scale * (held_out - training.mean()).square().mean().sqrt().item()

    def frame(self, predictive: Predictive) -> pd.DataFrame:
        """Mean, standard deviation with noise and without, and the central 90 % interval."""
        scale = self.target.scale
        mean = self.target.mean + scale * predictive.mean[:, 0].numpy()
        std = scale * predictive.std[:, 0].numpy()
        epistemic = scale * predictive.epistemic[:, 0].sqrt().numpy()
        edge = _QUANTILE * std
        columns = {"mean": mean, "std": std, "epistemic_std": epistemic, "lower": mean - edge, "upper": mean + edge}
        return pd.DataFrame(columns)

    def calibration(self, predictive: Predictive, targets: Tensor) -> Calibration:
        """Coverage of central intervals: the share of targets inside, for levels from 5 % to 95 %."""
        z = ((targets - predictive.mean) / predictive.std)[:, 0].numpy()
        pit = np.array([0.5 * (1 + erf(value / sqrt(2))) for value in z])
        levels = np.linspace(0.05, 0.95, 19)
        observed = [float((np.abs(2 * pit - 1) <= level).mean()) for level in levels]
        inside = float((np.abs(z) <= _QUANTILE).mean())
        words = f"{inside:.0%} of the {len(z)} targets held out are inside their {LEVEL:.0%} intervals."
        return Calibration(plots.coverage(levels, observed, len(z), pit=pit), words)


@final
@dataclass(frozen=True)
class Classification(Task):
    """Classes with probabilities softmax f, averaged over the posterior of f by the probit approximation."""

    target: ClassTarget
    error_label: ClassVar[str] = "share of wrong classes"
    short_label: ClassVar[str] = "share wrong"
    without: ClassVar[str] = "always the most frequent class:"

    @property
    def num_outputs(self) -> int:
        """One for each class."""
        return self.target.num_outputs

    @property
    def likelihood(self) -> Likelihood:
        """Softmax."""
        return CategoricalLikelihood()

    def noise(self, likelihood: Likelihood | None) -> dict[str, float]:
        """None."""
        return {}

    def scores(self, predictive: Predictive, targets: Tensor) -> dict[str, float]:
        """The share of wrong classes, and mean log p(y)."""
        probabilities = predictive.probit()
        return {"error": 1 - accuracy(probabilities, targets), "log_likelihood": -nll(probabilities, targets)}

    def ignorance(self, training: Tensor, held_out: Tensor) -> float:
        """Of the most frequent class of the training rows."""
        return (held_out != training.mode().values).double().mean().item()

    def frame(self, predictive: Predictive) -> pd.DataFrame:
        """The most probable class, and the probability of each."""
        probabilities = predictive.probit().numpy()
        best = [self.target.classes[position] for position in probabilities.argmax(1)]
        columns = {f"p_{name}": probabilities[:, k] for k, name in enumerate(self.target.classes)}
        return pd.DataFrame({"class": best, **columns})

    def calibration(self, predictive: Predictive, targets: Tensor) -> Calibration:
        """A reliability diagram."""
        probabilities = predictive.probit()
        confidence, chosen = probabilities.max(-1)
        error = ece(probabilities, targets, num_bins=10)
        right = (chosen == targets).double().mean().item()
        words = (
            f"Of the {len(targets)} rows held out {right:.1%} are classified rightly; the mean probability that the "
            f"model gave to its answers is {confidence.mean().item():.1%}. The expected calibration error is "
            f"{error:.3f}."
        )
        return Calibration(plots.reliability(confidence.numpy(), (chosen == targets).numpy(), ece=error), words)


def task_of(target: Target) -> Task:
    """The task that predicts this target."""
    if isinstance(target, NumberTarget):
        return Regression(target)
    assert isinstance(target, ClassTarget)
    return Classification(target)
