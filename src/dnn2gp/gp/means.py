"""mean= of convert: a posterior of the linear model at the network, centred and expanded as the chosen mean asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from dnn2gp.inference import (
    Decomposition,
    GaussNewtonStep,
    Inference,
    LinearisedMode,
    LinearModel,
    Mean,
    NetworkOutput,
    Posterior,
    linearised_mode,
)
from dnn2gp.inference.choice import start_for
from dnn2gp.likelihoods import Likelihood
from dnn2gp.support.memory import holding


def with_mean(
    method: Inference, model: LinearModel, mean: Mean, likelihood: Likelihood, known: Decomposition | None = None
) -> Posterior:
    """The posterior around this mean, for a linear model whose sites are at the network's weights."""
    if isinstance(mean, GaussNewtonStep):
        return method.infer_after(model, known)
    if isinstance(mean, NetworkOutput) and not mean.sites_at_mode:
        return at_network(method.infer_after(model, known))
    if isinstance(mean, LinearisedMode) and model.expansion.quadratic and method.solves:
        return method.infer_after(model, known)  # one step is exact, and keeps more digits
    found = at_mode(partial(start_for, method, model, known), likelihood, method)
    return at_network(found) if isinstance(mean, NetworkOutput) else found


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


def at_mode(
    start: Callable[[], Posterior], likelihood: Likelihood, method: Inference, tolerance: float | None = None
) -> Posterior:
    """The posterior by `method` with its sites at the mode of the linearised network, centred there.

    `start` makes the posterior that preconditions the search. Its memory is free before the result is computed, if
    nobody else keeps it.
    """
    return method.infer(linearised_mode(start, likelihood, tolerance))


def moved_to_mode(posterior: Posterior, likelihood: Likelihood) -> Posterior:
    """The posterior at the mode, for one whose sites are at the network's weights."""
    if not posterior.solves:
        return at_mode(partial(start_for, posterior.method, posterior.model), likelihood, posterior.method)
    if posterior.model.expansion.quadratic:  # one step is exact, and keeps more digits
        return posterior
    with holding(posterior.bytes):
        return posterior.method.infer(linearised_mode(posterior, likelihood))


def at_network(posterior: Posterior) -> Posterior:
    """The same posterior covariance around the output of the network."""
    return posterior.recentred(torch.zeros_like(posterior.model.expansion.anchor, dtype=torch.float64))
