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
from dataclasses import dataclass
from math import log

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from dnn2gp.evidence.function import RANGE
from dnn2gp.gp.by_evidence import spread
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.support.errors import DivergedError
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.progress import bar
from dnn2gp.support.randomness import global_states_kept
from dnn2gp.tune.ensemble import Ensemble, initial_weights, write_weights
from dnn2gp.tune.minimise import minimise

# The first and last initial λ, in units of the variance of the targets.
_FIRST = (10.0, 0.03)
# The range of σ, relative to the standard deviation of the targets.
_SIGMAS = (1e-4, 1e4)


@dataclass(frozen=True, eq=False)
class RestartProblem:
    """The data, and which of δ and σ are open."""

    network: nn.Module
    inputs: Float[Tensor, "1 N *in"]
    targets: Shaped[Tensor, "1 N *out"]
    likelihood: Likelihood
    """With σ = 1 if it is open."""
    given: float | None
    """δ, if it is given."""
    spread: float | None
    """The standard deviation of the targets, if σ is open."""

    @staticmethod
    def of(
        network: nn.Module, inputs: Tensor, targets: Tensor, likelihood: Likelihood, given: float | None
    ) -> RestartProblem:
        if not likelihood.is_open:
            return RestartProblem(network, inputs[None], targets[None], likelihood, given, None)
        return RestartProblem(network, inputs[None], targets[None], GaussianLikelihood(1.0), given, spread(targets))

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to tune."""
        return self.given is not None and self.spread is None

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of log λ."""
        if self.spread is None:
            return log(RANGE[0]), log(RANGE[1])
        if self.given is None:
            return log(RANGE[0] * self.spread**2), log(RANGE[1] * self.spread**2)
        low, high = (log(self.given * (share * self.spread) ** 2) for share in _SIGMAS)
        return low, high

    def first(self, count: int) -> Float[Tensor, " B"]:
        """The initial log λ of each member, from strong priors to weak ones; in the middle for a single member."""
        if self.fixed:
            return torch.full((count,), log(self.given or 1.0), dtype=torch.float64)
        if self.given is not None:
            return torch.full((count,), log(self.given * self.first_variance), dtype=torch.float64)
        ends = [log(end * (self.spread or 1.0) ** 2) for end in _FIRST]
        strong, weak = ends
        line = torch.linspace(strong, weak, count, dtype=torch.float64)
        return (line if count > 1 else line + (weak - strong) / 2).clamp(*self.bounds)

    @property
    def first_variance(self) -> float:
        """σ² of a network that explains three quarters of the variance of the targets; 1 if σ is not open."""
        return 1.0 if self.spread is None else 0.25 * self.spread**2

    def at_edge(self, place: float, variance: float) -> bool:
        """Whether log λ or σ² is at the edge of its range."""
        ends = [abs(place - end) < 1e-6 for end in self.bounds] if not self.fixed else []
        if self.spread is not None:
            low, high = ((share * self.spread) ** 2 for share in _SIGMAS)
            ends.append(not low * (1 + 1e-6) < variance < high * (1 - 1e-6))
        return any(ends)

    def ensemble(self, product: Float[Tensor, " B"]) -> Ensemble:
        """The losses for these λ."""
        return Ensemble(self.network, self.inputs, self.targets, self.likelihood, product)

    def evidence(
        self, ensemble: Ensemble, weights: Float[Tensor, "B P"], *, hopeful: bool = False
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """The log evidence, −∞ where it is not finite, and σ² (1 if it is not open).

        Away from a minimum, the gain of one more step is subtracted or, if `hopeful`, added.
        """
        variance = self._variance(ensemble, weights)
        curvature, own = ensemble.curvature(weights), None if self.spread is None else variance
        if hopeful:
            found = ensemble.evidence(weights, curvature, own)
        else:
            found = ensemble.cautious_evidence(weights, curvature, own)
        return found.nan_to_num(nan=-torch.inf), variance

    def _variance(self, ensemble: Ensemble, weights: Float[Tensor, "B P"]) -> Float[Tensor, " B"]:
        """The σ² with the largest evidence for these weights and λ, or that of a given δ."""
        product = ensemble.prior_precision[:, 0]
        if self.spread is None:
            return torch.ones_like(product)
        if self.given is not None:
            return product / self.given
        with torch.no_grad():
            total = 2 * ensemble.loss(weights)
        low, high = ((share * self.spread) ** 2 for share in _SIGMAS)
        return (total / self.targets.numel()).clamp(low, high)


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


@dataclass(frozen=True, eq=False)
class Fitted:
    """The member with the largest evidence, at a minimum with its δ and σ."""

    network: nn.Module
    likelihood: Likelihood
    prior_precision: float
    evidence: float
    """The log evidence."""
    relative_gradient: float
    """0 at a minimum."""
    rounds: int
    settled: bool
    """Whether δ and σ have converged."""
    at_edge: bool = False
    """Whether δ or σ is at the edge of its range, so that the evidence has no maximum inside it."""


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
    weights = initial_weights(build, [seed * 1000 + position for position in range(restarts)])
    with global_states_kept():  # a new module draws its initial weights
        network, fitted = build(), build()
    problem = RestartProblem.of(network, inputs, targets, likelihood, prior_precision)
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
