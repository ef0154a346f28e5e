"""gp.leave_one_out(): the prediction of every training example by the GP of all the others, without refitting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dnn2gp.features import NetworkFeatures
from dnn2gp.gp.minimum import at_minimum
from dnn2gp.inference import Latent, Posterior, Predictive, TopPredictive, left_out, training_latent
from dnn2gp.inference.calibration import Calibration
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.support.errors import InputError, NotAMinimumWarning, warn_user
from dnn2gp.weights.expansion import Expansion


@final
@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """p(yᵢ | xᵢ, D without example i) of each training example, in their order.

    Exact for a Gaussian likelihood, and for the linear model with its features fixed: it cannot detect what the
    features have learned from the example. For other likelihoods it is exact to first order.
    """

    prediction: Predictive | TopPredictive
    """What the others predict; its answers are those of `gp.predict`. With `SampledColumns` and more than 64 classes,
    it is that of `gp.predict(x, classes=TopClasses())`, with the label among the classes."""
    targets: Shaped[Tensor, "N ..."]

    @property
    def mean(self) -> Float[Tensor, "N *shape"]:
        """E y without the example."""
        return self.prediction.mean

    @property
    def latent_mean(self) -> Float[Tensor, "N K"]:
        """E f without the example."""
        return self.prediction.latent_mean

    @property
    def latent_covariance(self) -> Float[Tensor, "N C C"]:
        """Cov f without the example; of the classes that `prediction` has."""
        return self.prediction.latent_covariance

    @property
    def probabilities(self) -> Float[Tensor, "N *shape"]:
        """The probabilities of each class without the example, for classification."""
        return self.prediction.probabilities

    @cached_property
    def log_prob(self) -> Float[Tensor, " N"]:
        """log p(yᵢ | D without example i), in nats."""
        return self.prediction.log_prob(self.targets)

    @property
    def nll(self) -> float:
        """−(1/N) Σ log p(yᵢ | D without example i), in nats per example."""
        return -self.log_prob.mean().item()

    def __repr__(self) -> str:
        return f"LeaveOneOut({len(self.targets)} examples, NLL {self.nll:.3f})"


def leave_one_out(posterior: Posterior, likelihood: Likelihood, calibration: Calibration) -> LeaveOneOut:
    """The leave-one-out predictions of a GP, with a warning if they are not valid.

    If several processes share the examples, each computes the predictions of its own, and gets those of all.
    """
    expansion = posterior.model.expansion
    features = expansion.features
    if posterior.model.of_step or not isinstance(features, NetworkFeatures):
        raise InputError(
            "leave_one_out: expected the GP of a trained network with Gauss-Newton features; got that of a training "
            "step, or one with gradient features."
        )
    if expansion.targets is None:
        raise InputError(
            "leave_one_out: the file of this GP does not contain the targets of the training data, because an earlier "
            "release wrote it. Convert the network again."
        )
    latent = training_latent(posterior, expansion)
    found = left_out(expansion, _at_mode(posterior, latent), posterior)
    team = expansion.team
    outputs = team.gathered(latent.outputs + (latent.shift + found.shift).to(latent.outputs.dtype))
    without = own_noise(expansion, likelihood), features.network.output_shape, outputs, torch.zeros_like(outputs)
    covariance = team.gathered(found.covariance)
    if latent.split is None:
        prediction = Predictive(*without, covariance, calibration=calibration)
    else:
        prediction = TopPredictive(*without, covariance, latent.split.each(team.gathered), calibration)
    return LeaveOneOut(prediction, team.gathered(expansion.targets))


def own_noise(expansion: Expansion, likelihood: Likelihood) -> Likelihood:
    """The likelihood of the training examples: with the noise of each, if it is Gaussian."""
    if not isinstance(likelihood, GaussianLikelihood):
        return likelihood
    return GaussianLikelihood(expansion.team.gathered(expansion.root.diagonal(dim1=1, dim2=2).reciprocal()))


def _at_mode(posterior: Posterior, latent: Latent) -> Latent:
    """f where the example is left out: at the mode, if the sites are there or an exact step leads there.

    Otherwise where predictions are, with a warning unless that is a minimum. A regression around its network has r at
    the weights, and r at the mode is one exact step away.
    """
    model, expansion = posterior.model, posterior.model.expansion
    if expansion.moved is not None:
        return latent
    if not (expansion.quadratic and posterior.exact):
        _warn_unless_valid(posterior)
        return latent
    if model.centre is None:
        return latent
    step = posterior.least_squares[0].to(expansion.features.anchor.dtype)
    return replace(latent, shift=-expansion.features.jvp(expansion.inputs, step[:, None])[..., 0])


def _warn_unless_valid(posterior: Posterior) -> None:
    """Warn if the sites are those of a network that is not at a minimum."""
    if not at_minimum(posterior.model.relative_gradient(), posterior.step_bound(), exact=posterior.exact):
        warn_user(
            "leave_one_out: the weights are not at a minimum of the loss, where leave-one-out is not valid. Convert "
            "with mean=LinearisedMode(), or with NetworkOutput(sites_at_mode=True).",
            NotAMinimumWarning,
        )
