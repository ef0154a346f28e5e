"""gp.calibrated(): the calibration of a GP that predicts best, by leave-one-out or on a validation set."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import final

from jaxtyping import Shaped
from torch import Tensor

from dnn2gp.features import NetworkFeatures, StackedFeatures
from dnn2gp.gp.automatic import Predictor, calibration_at_mode, calibration_at_network
from dnn2gp.gp.calibrate import POINTS, Chosen, best_calibration
from dnn2gp.gp.means import at_mode, at_network, mean_of
from dnn2gp.gp.minimum import at_minimum
from dnn2gp.inference import GaussNewtonStep, Latent, LinearisedMode, Posterior
from dnn2gp.inference.averages import averages
from dnn2gp.inference.calibration import Calibration
from dnn2gp.inference.choice import start_for
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network import Network
from dnn2gp.network.data import read_data
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import InputError, NotFiniteError


def calibration_for(
    posterior: Posterior,
    likelihood: Likelihood,
    features: NetworkFeatures | StackedFeatures,
    validation: object = None,
) -> Calibration:
    """The calibration of a posterior with its mean, by leave-one-out if there is no validation set."""
    if validation is not None:
        held = HeldOut.of(validation, features.network, likelihood)
        return held.best(posterior.latent(features, held.inputs)).calibration
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
    mode = posterior if expansion.moved is not None else _at_mode(posterior, likelihood)
    assert mode.model.expansion.moved is not None
    return calibration_at_network(mode.recentred(mode.model.expansion.moved), likelihood)


def by_validation(mode: Posterior, likelihood: Likelihood, validation: object, network: Network) -> Predictor:
    """Mean and calibration from a validation set, for a posterior at the mode (or an exact regression)."""
    held = HeldOut.of(validation, network, likelihood)
    around = at_network(mode)
    features = mode.model.expansion.features
    found = [(around, held.best(around.latent(features, held.inputs)))]
    # The mode is one more thing that is chosen, so it must gain more than a parameter does by chance.
    chosen = held.best(mode.latent(features, held.inputs))
    found.append((mode, Chosen(chosen.calibration, chosen.nll + 1 / len(held.targets))))
    posterior, best = min(found, key=lambda pair: pair[1].nll)
    return Predictor(posterior, best.calibration)


@final
@dataclass(frozen=True, eq=False)
class HeldOut:
    """A validation set in the form that the network and the likelihood take."""

    inputs: Inputs
    targets: Shaped[Tensor, "N ..."]
    likelihood: Likelihood

    @staticmethod
    def of(validation: object, network: Network, likelihood: Likelihood) -> HeldOut:
        """From (inputs, targets), a Dataset or a DataLoader."""
        if likelihood.per_example:
            raise InputError(
                "validation: the noise of this GP was given for each training example, so it is unknown for others."
            )
        try:
            given = read_data(validation)
            inputs = network.check_inputs(given.inputs)
            targets = likelihood.targets_for(given.targets, given.num_examples, network.output_shape, network.dtype)
        except InputError as error:
            raise InputError(f"validation, {error}") from error
        return HeldOut(inputs, targets.to(network.device), likelihood)

    def best(self, latent: Latent) -> Chosen:
        """The calibration with the smallest NLL; temperature scaling alone, unless the covariance is worth its scale.

        A second parameter lowers the NLL of N examples by 1/N by chance alone.
        """
        found = averages(self.likelihood, latent.outputs + latent.shift, latent.covariance, POINTS)
        both = best_calibration(found, self.targets, self.likelihood)
        alone = best_calibration(found, self.targets, self.likelihood, scale=0.0)
        if not (isfinite(both.nll) or isfinite(alone.nll)):
            raise NotFiniteError(
                "validation: the targets are so far from the predictions that their log density is not finite for any "
                "calibration. Check that they have the units of the training targets."
            )
        return both if both.nll + 1 / len(self.targets) < alone.nll else alone


def _is_minimum(posterior: Posterior) -> bool:
    return at_minimum(posterior.model.relative_gradient(), posterior.step_bound(), exact=posterior.exact)


def _at_mode(posterior: Posterior, likelihood: Likelihood) -> Posterior:
    """The posterior at the mode, found with this one if it can."""
    start = posterior if posterior.solves else start_for(posterior.method, posterior.model)
    return at_mode(start, likelihood, posterior.method)
