"""gp.calibrated(): the calibration of a GP that predicts best, by leave-one-out or on a validation set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import final

from jaxtyping import Float, Shaped
from torch import Tensor

from dnn2gp.features import FeatureMap, NetworkFeatures, StackedFeatures
from dnn2gp.gp.automatic import Guess, Predictor, calibration_at_mode, calibration_at_network
from dnn2gp.gp.calibrate import POINTS, best_calibration, exceeds_error, score_scale
from dnn2gp.gp.means import at_network, mean_of, moved_to_mode
from dnn2gp.gp.minimum import at_minimum
from dnn2gp.inference import GaussNewtonStep, Latent, LinearisedMode, Posterior, new_latent
from dnn2gp.inference.averages import Averages, averages
from dnn2gp.inference.calibration import NONE, Calibration
from dnn2gp.likelihoods import ClassificationLikelihood, Likelihood
from dnn2gp.network import Network
from dnn2gp.network.checksums import checksums
from dnn2gp.network.data import read_data
from dnn2gp.network.inputs import Inputs, num_examples
from dnn2gp.network.views import share_of
from dnn2gp.support.errors import InputError, NotFiniteError


def calibration_for(
    posterior: Posterior,
    likelihood: Likelihood,
    features: NetworkFeatures | StackedFeatures,
    validation: object = None,
) -> Calibration:
    """The calibration of a posterior with its mean, by leave-one-out if there is no validation set."""
    if validation is not None:
        held = HeldOut.of(validation, features.network, likelihood, features.budget())
        return held.best(held.latent(posterior, features)).calibration
    expansion, mean = posterior.model.expansion, mean_of(posterior)
    if posterior.model.of_step or expansion.targets is None:
        raise InputError(
            "calibrated: leave-one-out needs the GP of a trained network with Gauss-Newton features and its targets. "
            "Pass a validation set: gp.calibrated((inputs, targets))."
        )
    if isinstance(mean, LinearisedMode):
        return calibration_at_mode(posterior, likelihood)
    if isinstance(mean, GaussNewtonStep):
        if not _is_minimum(posterior):
            raise InputError(
                "calibrated: leave-one-out is not valid after a single Gauss-Newton step, as the weights are not at a "
                "minimum. Convert with another mean=, or pass a validation set: gp.calibrated((inputs, targets))."
            )
        return calibration_at_mode(posterior, likelihood)
    mode = posterior if expansion.moved is not None else moved_to_mode(posterior, likelihood)
    assert mode.model.expansion.moved is not None
    return calibration_at_network(mode.recentred(mode.model.expansion.moved), likelihood)


def by_validation(mode: Posterior, likelihood: Likelihood, validation: object, network: Network) -> Predictor:
    """Mean and calibration from a validation set, for a posterior at the mode (or an exact regression).

    The mean is the mode if both the validation set and leave-one-out prefer it, or the validation set alone by more
    than two standard errors (a gain from a single example is only one). An exact regression keeps its exact mean unless
    the network predicts the validation set better by as much.
    """
    features, around = mode.model.expansion.features, at_network(mode)
    held = HeldOut.of(validation, network, likelihood, features.budget())
    there, here = (held.latent(each, features) for each in (mode, around))
    if mode.model.expansion.quadratic and mode.solves:
        fits = held.best(there), held.best(here)
        moved = not fits[1].beats(fits[0])
    else:
        guess = Guess.of(mode, likelihood)
        fits = held.best(there, guess.at_mode), held.best(here, guess.at_network)
        moved = fits[0].beats(fits[1]) or (fits[0].beats(fits[1], errors=0.0) and guess.underfit)
    return Predictor(mode, fits[0].calibration) if moved else Predictor(around, fits[1].calibration)


@final
@dataclass(frozen=True, eq=False)
class Fit:
    """A calibration that was chosen on a validation set, and log p(y) of each example there."""

    calibration: Calibration
    log_prob: Float[Tensor, " N"]

    @property
    def finite(self) -> bool:
        """Whether every example has a probability that float64 can hold."""
        return isfinite(self.log_prob.sum().item())

    def beats(self, other: Fit, errors: float = 2.0) -> bool:
        """Whether it predicts better by more than `errors` standard errors."""
        return exceeds_error(self.log_prob - other.log_prob, errors)


@final
@dataclass(frozen=True, eq=False)
class HeldOut:
    """A validation set in the form that the network and the likelihood take."""

    inputs: Inputs
    targets: Shaped[Tensor, "N ..."]
    likelihood: Likelihood

    @staticmethod
    def of(validation: object, network: Network, likelihood: Likelihood, budget: int) -> HeldOut:
        """From (inputs, targets), a Dataset or a DataLoader, within a memory budget."""
        if likelihood.per_example:
            raise InputError(
                "validation: the noise of this GP was given for each training example, so it is unknown for others."
            )
        try:
            given = read_data(validation, budget)
            inputs = network.check_inputs(given.inputs)
            targets = likelihood.targets_for(given.targets, given.num_examples, network.output_shape, network.dtype)
        except InputError as error:
            raise InputError(f"validation, {error}") from error
        return HeldOut(inputs, targets.to(network.device), likelihood)

    def latent(self, posterior: Posterior, features: FeatureMap) -> Latent:
        """f at the inputs; several processes compute a share each, so that all of them choose from the same numbers.

        What each of them would compute for all inputs differs in rounding if they read chunks of different lengths.
        """
        team, count = features.team, num_examples(self.inputs)
        team.agree({"validation set": [checksums(self.inputs), self.targets] if team.size > 1 else []})
        own = team.share(count) if count >= team.size else slice(0, count)
        return new_latent(posterior, features, share_of(self.inputs, own)).gathered(team).take(count)

    def best(self, latent: Latent, guess: Calibration | None = None) -> Fit:
        """The calibration with the smallest NLL, with a prior around a `guess` from leave-one-out, if there is one.

        Without a guess, it must beat a simpler one by more than two standard errors: temperature scaling (a = 0) for a
        classifier, and no calibration for other likelihoods.
        """
        f = latent.outputs + latent.shift
        found = averages(self.likelihood, f, latent.covariance, POINTS, latent.split)
        both = self._fit(found, best_calibration(found, self.targets, self.likelihood, guess=guess).calibration)
        simple = NONE
        if isinstance(self.likelihood, ClassificationLikelihood):
            simple = best_calibration(found, self.targets, self.likelihood, scale=0.0).calibration
        alone = self._fit(found, simple)
        if not (both.finite or alone.finite):
            raise NotFiniteError(
                "validation: the targets are so far from the predictions that their log density is not finite for any "
                "calibration. Check that they have the units of the training targets."
            )
        chosen = both if guess is not None or both.beats(alone) else alone
        scores = score_scale(found, self.likelihood) if guess is None else guess.scores
        return replace(chosen, calibration=replace(chosen.calibration, scores=scores))

    def _fit(self, found: Averages, calibration: Calibration) -> Fit:
        settings = calibration.scale, calibration.temperature, calibration.noise
        return Fit(calibration, found.scaled(*settings).log_prob(self.targets).detach())


def _is_minimum(posterior: Posterior) -> bool:
    return at_minimum(posterior.model.relative_gradient(), posterior.step_bound(), exact=posterior.exact)
