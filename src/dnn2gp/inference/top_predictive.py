"""Predictions with the covariance of the most probable classes only: see `top_classes`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.inference.answers import Answers
from dnn2gp.inference.averages import Averages, averages
from dnn2gp.inference.calibration import NONE, Calibration
from dnn2gp.inference.predictive import finite
from dnn2gp.inference.split import Split
from dnn2gp.likelihoods import Likelihood


@final
@dataclass(frozen=True, eq=False)
class TopPredictive(Answers):
    """The predictive distribution of a classifier at N inputs, with a joint covariance of m of its K logits.

    `probabilities`, `log_prob`, `max_probability`, entropies and mutual information are those of `Predictive`, up to
    the approximation that all other classes share one logit. The fields are those of the exact posterior of f, whatever
    the calibration. Samples of f, and the variances of y, need all logits: use `gp.predict(inputs)` for them.
    """

    likelihood: Likelihood
    output_shape: tuple[int, ...]
    outputs: Float[Tensor, "N K"]
    """f_w(x), the network itself."""
    shift: Float[Tensor, "N K"]
    """J(x)(μ − w), zero at a minimum."""
    latent_covariance: Float[Tensor, "N C C"]
    """The covariance of the logits of `classes`, in their order, and of the one logit of all other classes."""
    split: Split
    """The m most probable classes of each input, and the mean variance within all others."""
    calibration: Calibration = NONE
    """a and τ of f ~ N(m/τ, a V/τ²); by default, nothing is changed."""
    latent_covariance_error: Float[Tensor, " N"] | None = None
    """The relative standard deviation of the trace of `latent_covariance`, if inference estimated it (`Iterative`)."""

    @property
    def classes(self) -> Int[Tensor, "N m"]:
        """The m most probable classes of each input, the most probable one first."""
        return self.split.classes

    def __repr__(self) -> str:
        sizes = f"{len(self.outputs)} inputs, outputs of shape {self.output_shape}"
        return f"TopPredictive({sizes}, covariances of {self.classes.shape[1]} classes)"

    @property
    def latent_mean(self) -> Float[Tensor, "N K"]:
        """f_w(x) + J(x)(μ − w) of all classes."""
        own = self.calibrated
        return own.outputs + own.shift

    @property
    def mean(self) -> Float[Tensor, "N *shape"]:
        """h(f) + Λ J (μ − w), as `Predictive.mean`."""
        own = self.calibrated
        moved = own.likelihood.noise_precision_matmul(own.outputs, own.shift)
        return self._shaped_answer(finite(own.likelihood.mean(own.outputs) + moved, "prediction of y"))

    @property
    def calibrated(self) -> TopPredictive:
        """This with the calibration applied to the fields: m/τ and a V/τ². Itself, if there is none."""
        chosen = self.calibration
        if chosen.is_identity:
            return self
        factor = chosen.scale / chosen.temperature**2
        return replace(
            self,
            outputs=self.outputs / chosen.temperature,
            shift=self.shift / chosen.temperature,
            latent_covariance=self.latent_covariance * factor,
            split=self.split.scaled(factor),
            calibration=NONE,
        )

    @property
    def uncalibrated(self) -> TopPredictive:
        """This without its calibration: the exact posterior."""
        return self if self.calibration.is_identity else replace(self, calibration=NONE)

    @property
    def scored(self) -> TopPredictive:
        """f ~ N(m, a V) with the scale a of scores, which entropies and mutual information are computed from."""
        scale, own = self.calibration.scores, self.uncalibrated
        if scale == 1:
            return own
        return replace(own, latent_covariance=own.latent_covariance * scale, split=own.split.scaled(scale))

    def _check_noise(self) -> None:
        """Classes have no noise."""

    def _averages(self) -> Averages:
        return averages(self.likelihood, self.latent_mean, self.latent_covariance, split=self.split)
