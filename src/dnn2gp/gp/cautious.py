"""A warning of `convert` if the exact posterior makes probabilities too cautious."""

from __future__ import annotations

from dnn2gp.gp.moved import spread
from dnn2gp.inference import Posterior, training_latent
from dnn2gp.inference.averages import ClassAverages, averages
from dnn2gp.likelihoods import CategoricalLikelihood, Likelihood
from dnn2gp.support.errors import CautiousWarning, warn_user

# The number of training examples to look at, the points per average, and how far confidence may be below accuracy.
_EXAMPLES, _POINTS, _MOST = 100, 256, 0.1


def warn_if_cautious(posterior: Posterior, likelihood: Likelihood) -> None:
    """Warn if the mean confidence on training examples is much lower than the accuracy on them."""
    expansion = posterior.model.expansion
    if not isinstance(likelihood, CategoricalLikelihood) or expansion.targets is None:
        return
    _, few = spread(expansion, _EXAMPLES)
    assert few.targets is not None
    latent = training_latent(posterior, few)
    f = latent.outputs + latent.shift
    found = averages(likelihood, f, latent.covariance, _POINTS, latent.split)
    assert isinstance(found, ClassAverages)
    confidences, rights = found.probabilities().detach().amax(1), f.argmax(1) == few.targets
    confidence = few.team.gathered(confidences).mean().item()
    right = few.team.gathered(rights.double()).mean().item()
    if confidence < right - _MOST:
        warn_user(
            f"Averaged over the exact posterior, the most probable class of the training examples has a probability of "
            f"{confidence:.0%} on average, although {right:.0%} of them are predicted correctly: the probabilities are "
            "probably too cautious. Use gp.calibrated(), with a validation set if you have one, or leave mean= out.",
            CautiousWarning,
        )
