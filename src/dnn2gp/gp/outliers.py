"""Is an input like the training data? Its novelty, and the threshold of its outlier score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference import Predictive
from dnn2gp.inference.novelty import novelty
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import InputError

if TYPE_CHECKING:
    from dnn2gp.gp.gaussian_process import GaussianProcess


def novelty_of(prediction: Predictive, inputs: Inputs, gp: GaussianProcess) -> Float[Tensor, "N *K"]:
    """The share of the prior variance at these inputs that the posterior of the prediction has left."""
    return _novelty(prediction, gp.features.covariance(inputs, gp.prior.precision.double()), gp)


def _novelty(prediction: Predictive, prior: Float[Tensor, "N K K"], gp: GaussianProcess) -> Float[Tensor, "N *K"]:
    exact = prediction.uncalibrated
    return novelty(gp.likelihood, exact.latent_mean, exact.latent_covariance, prior)


def threshold(gp: GaussianProcess, familiar: Inputs | None, false_alarms: float) -> float:
    """The (1 − false_alarms)-quantile of the outlier scores of familiar inputs.

    Without any, these are the scores of the training examples, each from its leave-one-out prediction.
    """
    if not isinstance(false_alarms, float) or not 0 < false_alarms < 1:
        raise InputError(f"false_alarms: expected a number between 0 and 1, e.g. 0.05; got {false_alarms!r}.")
    if familiar is not None:
        scores = gp.outlier_score(familiar)
    else:
        with gp.team.together():
            prediction, inputs = gp.leave_one_out().prediction, gp.model.expansion.inputs
            prior = gp.team.gathered(gp.features.covariance(inputs, gp.prior.precision.double()))
        share = _novelty(prediction, prior, gp).to(prediction.entropy.dtype)
        scores = prediction.entropy * share.reshape(prediction.entropy.shape)
    return scores.detach().double().flatten().quantile(1 - false_alarms).item()
