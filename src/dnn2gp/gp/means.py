"""mean= of convert: a posterior of the linear model at the network, centred and expanded as the chosen mean asks."""

from __future__ import annotations

import torch

from dnn2gp.inference import GaussNewtonStep, LinearisedMode, Mean, NetworkOutput, Posterior, linearised_mode
from dnn2gp.likelihoods import Likelihood
from dnn2gp.support.memory import holding


def with_mean(posterior: Posterior, mean: Mean, likelihood: Likelihood) -> Posterior:
    """The posterior around this mean, starting from the one whose sites are at the network's weights."""
    if isinstance(mean, GaussNewtonStep):
        return posterior
    if isinstance(mean, NetworkOutput):
        found = at_mode(posterior, likelihood) if mean.sites_at_mode else posterior
        return at_network(found)
    assert isinstance(mean, LinearisedMode)
    if posterior.solves and posterior.model.expansion.quadratic:  # one step is exact, and keeps more digits
        return posterior
    return at_mode(posterior, likelihood)


def mean_of(posterior: Posterior) -> Mean:
    """Which function the predictions of a posterior are centred at."""
    expansion, centre = posterior.model.expansion, posterior.model.centre
    if centre is None and not posterior.solves:  # an approximation takes no step
        return NetworkOutput()
    if centre is None:
        return LinearisedMode() if expansion.quadratic and not posterior.model.of_step else GaussNewtonStep()
    moved = expansion.moved
    if moved is not None and torch.equal(centre, moved):
        return LinearisedMode()
    return NetworkOutput(sites_at_mode=moved is not None)


def at_mode(posterior: Posterior, likelihood: Likelihood, tolerance: float | None = None) -> Posterior:
    """With the sites at the mode of the linearised network, and centred there.

    The memory of the given posterior is free afterwards if the caller does not keep it: `at_mode(method.infer(model))`.
    """
    with holding(matrices(posterior)):
        return posterior.method.infer(linearised_mode(posterior, likelihood, tolerance))


def matrices(posterior: Posterior) -> int:
    """Bytes that a posterior holds: a matrix and its factor."""
    return 2 * sum(tensor.nbytes for tensor in posterior.state().values())


def at_network(posterior: Posterior) -> Posterior:
    """The same posterior covariance around the output of the network."""
    return posterior.recentred(torch.zeros_like(posterior.model.expansion.anchor, dtype=torch.float64))
