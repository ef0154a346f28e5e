"""Is an input like the training data? Outlier scores, and the threshold between familiar and unfamiliar inputs."""

from __future__ import annotations

from math import ceil

from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference import Predictive
from dnn2gp.inference.novelty import novelty
from dnn2gp.likelihoods import ClassificationLikelihood, Likelihood
from dnn2gp.support.errors import InputError


def novelties(prediction: Predictive, likelihood: Likelihood, prior: Float[Tensor, "N K K"]) -> Float[Tensor, "N *K"]:
    """The posterior variance of f as a share of the prior variance."""
    exact = prediction.uncalibrated
    return novelty(likelihood, exact.latent_mean, exact.latent_covariance, prior)


def scores(prediction: Predictive, likelihood: Likelihood, prior: Float[Tensor, "N K K"]) -> Float[Tensor, "N *shape"]:
    """The novelty of each input times the entropy of its averaged probabilities, in nats."""
    if not isinstance(likelihood, ClassificationLikelihood):
        raise InputError(
            "outlier_score: expected a CategoricalLikelihood or a BernoulliLikelihood; got "
            f"{type(likelihood).__name__}. Use gp.novelty(inputs)."
        )
    entropy = prediction.entropy
    return entropy * novelties(prediction, likelihood, prior).to(entropy.dtype).reshape(entropy.shape)


def exceeded_by(share: float, found: Float[Tensor, "N *shape"], *, enough: bool = False) -> float:
    """The value that this share of the scores exceed; if `enough`, there must be at least 1 / share inputs."""
    if not isinstance(share, float) or not 0 < share < 1:
        raise InputError(f"false_alarms: expected a number between 0 and 1, e.g. 0.05; got {share!r}.")
    if enough and len(found) < ceil(1 / share - 1e-9):
        raise InputError(
            f"familiar: expected at least {ceil(1 / share - 1e-9)} inputs for {share:.3g} false alarms; got "
            f"{len(found)}. Leave it out to use the training examples."
        )
    return found.detach().double().flatten().quantile(1 - share).item()
