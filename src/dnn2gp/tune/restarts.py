"""A small network trained from several initialisations at once, each tuning δ and σ to the largest evidence.

The estimators and the command line use it for tables. In a regression the weights depend on λ = δσ² alone, and at a
minimum w of ½‖y − f‖² + ½ λ wᵀw, with M targets, the best σ has a closed form:

    σ² = (‖y − f‖² + λ wᵀw) / M,        log p(D) = −(M/2) (log 2πσ² + 1) − ½ log |I + JᵀJ/λ|

So δ and σ lie on one line, log λ (log δ for classes), and each member searches it on its own: it takes a step, trains
from its best weights so far, and evaluates the evidence at the resulting minimum. Only steps that raise the evidence
are accepted; if neither direction does, the steps become shorter. (Moving δ and σ to their best values at fixed
features would be faster where it works. With more weights than data the features follow the noise, and this runs away
to σ = 0 while the evidence falls.)
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.support.errors import DivergedError
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.progress import bar
from dnn2gp.support.randomness import global_states_kept
from dnn2gp.tune.ensemble import Ensemble, initial_weights, write_weights
from dnn2gp.tune.large_network import fit_large
from dnn2gp.tune.minimise import minimise
from dnn2gp.tune.restart_problem import Fitted, RestartProblem

__all__ = ["DENSE_WEIGHTS", "Fitted", "fit_restarts"]

DENSE_WEIGHTS, DENSE_OPERATIONS = 3000, 3e9
"""Up to this P, and up to 2 M P² operations with M sites, training factorises JᵀΛJ + δ in every step. Larger networks
are trained as in `large_network.py`: 50 times as fast or more, for 400 examples of ten classes and P = 1,510."""
# The initial length of a step in log λ, the factor by which steps are shortened, and the length at which a member ends.
_LONG, _SHORTER, _SHORT = log(6.0), 0.35, 0.25
# During the search, training ends if a step would gain less than this, in nats, or after this many steps.
_GAIN, _STEPS = 0.05, 60
# After this many steps, training continues only if it may still come within this many nats of its member's best.
_LOOK, _HOPELESS = 15, 5.0
# The limits of the final training.
_LAST_GAIN, _LAST_STEPS = 1e-3, 200
# The damping of training runs that start near a minimum.
_WARM = 1e-2
# Weights whose norm is below this fraction of the initial one have collapsed: training restarts from the initial ones.
_VANISHED = 1e-3


def fit_restarts(
    build: Callable[[], nn.Module],
    inputs: Float[Tensor, "N *in"],
    targets: Shaped[Tensor, "N *out"],
    likelihood: Likelihood,
    *,
    prior_precision: float | None = None,
    restarts: int = 4,
    seed: int = 0,
    max_rounds: int = 20,
) -> Fitted:
    """Train networks made by `build`, in float64 on standardised data, and return the one with the largest evidence.

    likelihood       σ is tuned if it is open, as in GaussianLikelihood()
    prior_precision  δ; None: tuned
    targets          in the canonical form of the likelihood: N × K for a regression, N labels for classes
    """
    restarts, max_rounds = whole_number("restarts", restarts), whole_number("max_rounds", max_rounds)
    with global_states_kept():  # a new module draws its initial weights
        network, fitted = build(), build()
    problem = RestartProblem.of(network, inputs, targets, likelihood, prior_precision)
    if problem.num_weights > DENSE_WEIGHTS or 2.0 * problem.num_sites * problem.num_weights**2 > DENSE_OPERATIONS:
        with global_states_kept():
            return fit_large(build, problem, restarts, seed, max_rounds)
    weights = initial_weights(build, [seed * 1000 + position for position in range(restarts)])
    search, rounds = _Search(problem, weights), 0
    with bar("training and tuning", max_rounds) as advance:
        while rounds < max_rounds and len(search.active):
            search.round()
            rounds += 1
            advance(f"best log evidence so far {search.evidence.max().item():.2f}")
    return search.finished(fitted, rounds)


class _Search:
    """The best that each member has found, and the step that it tries next."""

    def __init__(self, problem: RestartProblem, weights: Float[Tensor, "B P"]) -> None:
        self.problem, self.first = problem, weights
        self.place = problem.first(len(weights))
        self.weights = weights.clone()
        self.evidence = torch.full((len(weights),), -torch.inf, dtype=torch.float64)
        self.variance = torch.full_like(self.evidence, problem.first_variance)
        middle = self.place.mean()
        self.direction = torch.where(self.place > middle, -1.0, 1.0).double()
        self.length = torch.zeros(len(weights), dtype=torch.float64)  # the first round stays at the initial λ
        self.worse_sides = torch.zeros(len(weights), dtype=torch.long)
        self._begun = False

    @property
    def active(self) -> Int[Tensor, " b"]:
        """The members that have not converged."""
        if not self._begun:
            return torch.arange(len(self.weights))
        return (self.length >= _SHORT).nonzero()[:, 0]

    def round(self) -> None:
        """One step of each active member: train with the new λ from the best weights, and keep improvements."""
        own = self.active
        place = (self.place + self.direction * self.length)[own].clamp(*self.problem.bounds)
        ensemble = self.problem.ensemble(place.exp())
        weights = self._trained(own, ensemble)
        evidence, variance = self.problem.evidence(ensemble, weights)
        better = evidence > self.evidence[own]
        moved = own[better]
        self.place[moved], self.weights[moved] = place[better], weights[better]
        self.evidence[moved], self.variance[moved] = evidence[better], variance[better]
        if self._begun:
            self._turn(moved, own[~better])
        else:
            self._begun = True
            self.length.fill_(0.0 if self.problem.fixed else _LONG)

    def _trained(self, own: Int[Tensor, " b"], ensemble: Ensemble) -> Float[Tensor, "b P"]:
        """The weights near a minimum; runs that cannot be expected to beat the best of their member stop early.

        The expectation is the evidence after one more step at fixed features: a guess.
        """
        gain, start = _GAIN * self.variance[own], self._start(own)
        if not self._begun:
            steps = _LAST_STEPS if self.problem.fixed else _STEPS
            return minimise(ensemble, start, gain=gain, max_iterations=steps).weights
        weights = minimise(ensemble, start, gain=gain, damping=_WARM, max_iterations=_LOOK).weights
        hope = self.problem.evidence(ensemble, weights, hopeful=True)[0]
        on = (hope > self.evidence[own] - _HOPELESS).nonzero()[:, 0]
        if len(on):
            rest = minimise(ensemble.take(on), weights[on], gain=gain[on], damping=_WARM, max_iterations=_STEPS - _LOOK)
            weights[on] = rest.weights
        return weights

    def _turn(self, moved: Int[Tensor, " a"], stayed: Int[Tensor, " c"]) -> None:
        """Members that moved keep their direction; the others reverse it, or shorten their steps after both failed."""
        self.worse_sides[moved] = 1
        self.worse_sides[stayed] += 1
        self.direction[stayed] *= -1
        both = stayed[self.worse_sides[stayed] > 1]
        self.length[both] *= _SHORTER
        self.worse_sides[both] = 0

    def _start(self, own: Int[Tensor, " b"]) -> Float[Tensor, "b P"]:
        """The best weights, or the initial ones if a strong prior made them collapse."""
        vanished: Bool[Tensor, "b 1"] = (
            self.weights[own].norm(dim=1) < _VANISHED * self.first[own].norm(dim=1)
        ).unsqueeze(1)
        return torch.where(vanished, self.first[own], self.weights[own])

    def finished(self, network: nn.Module, rounds: int) -> Fitted:
        """The best member, trained to its minimum."""
        if not self.evidence.isfinite().any():
            raise DivergedError("No initialisation has a finite evidence. Check the scale of inputs and targets.")
        own = self._best_at_its_minimum()
        weights, place, variance = self.weights[own], self.place[own], self.variance[own]
        ensemble = self.problem.ensemble(place.exp())
        curvature = ensemble.curvature(weights)
        evidence = ensemble.evidence(weights, curvature, None if self.problem.spread is None else variance)
        if not evidence.isfinite():
            raise DivergedError(
                "The final network does not have a finite evidence. Check the scale of inputs and targets."
            )
        write_weights(network, weights[0])
        known = self.problem.likelihood
        return Fitted(
            network,
            known if self.problem.spread is None else GaussianLikelihood(variance.sqrt().item()),
            (place.exp() / variance).item(),
            evidence.item(),
            curvature.relative_gradient.item(),
            rounds,
            bool(self.length[own] < _SHORT),
            self.problem.at_edge(place.item(), variance.item()),
        )

    def _best_at_its_minimum(self) -> Int[Tensor, " 1"]:
        """Train the best member to its minimum; if another one is better then, that one, and so on."""
        ended = torch.zeros(len(self.evidence), dtype=torch.bool)
        while not ended[best := self.evidence.argmax()]:
            own = best[None]
            ensemble = self.problem.ensemble(self.place[own].exp())
            gain = _LAST_GAIN * self.variance[own]
            found = minimise(ensemble, self.weights[own], gain=gain, damping=_WARM, max_iterations=_LAST_STEPS)
            self.weights[own] = found.weights
            self.evidence[own], self.variance[own] = self.problem.evidence(ensemble, found.weights)
            ended[best] = True
        return best[None]
