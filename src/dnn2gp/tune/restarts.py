"""A small network from several starts at once: δ and σ along the minima of its loss, to the largest evidence.

What the estimators and the command line do with a table. In a regression the weights depend on λ = δσ² alone, and at a
minimum w of ½‖y − f‖² + ½ λ wᵀw, with M targets, the best σ has a closed form:

    σ² = (‖y − f‖² + λ wᵀw) / M,        log p(D) = −(M/2) (log 2πσ² + 1) − ½ log |I + JᵀJ/λ|

So δ and σ are one line, log λ (log δ for classes), and each start searches it for itself: a step, training from the
best weights so far, and the evidence at the minimum it leads to. Only steps that raise the evidence are taken; where
none to either side does, they become shorter. (Moving δ and σ to their best values at fixed features would be quicker
where it works. With more weights than data the features follow the noise, and that runs away to σ = 0 while the
evidence falls.)
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
from dnn2gp.support.errors import DivergedError, InputError
from dnn2gp.support.progress import bar
from dnn2gp.support.randomness import global_states_kept
from dnn2gp.tune.ensemble import Ensemble, initial_weights, write_weights
from dnn2gp.tune.minimise import minimise

# Between these first λ the members begin, and with steps of this length in log λ; below the last they end.
_FIRST, _LONG, _SHORTER, _SHORT = (10.0, 0.03), log(6.0), 0.35, 0.25
# On the way a training ends when a step would gain less than this, in nats, or after as many steps.
_GAIN, _STEPS = 0.05, 60
# After these steps it goes on only if its evidence may still come to within so many nats of the best of its member.
_LOOK, _HOPELESS = 15, 5.0
# The same for the training at the end.
_LAST_GAIN, _LAST_STEPS = 1e-3, 200
# The damping of trainings that begin near a minimum.
_WARM = 1e-2
# Weights below this share of the first ones are those of no network: training begins anew with the first.
_VANISHED = 1e-3
# σ is looked for within these shares of the targets' spread.
_SIGMAS = (1e-4, 1e4)


@dataclass(frozen=True, eq=False)
class Fitted:
    """The member with the largest evidence, trained to a minimum with its δ and σ."""

    network: nn.Module
    likelihood: Likelihood
    prior_precision: float
    evidence: float
    """Its log evidence."""
    relative_gradient: float
    """0 at a minimum."""
    rounds: int
    settled: bool
    """Whether δ and σ had come to rest."""
    evidences: tuple[float, ...]
    """Those of all members at their best, less what a step would still gain; only leaders are trained to the end."""
    at_edge: bool = False
    """Whether δ or σ lies at the edge of its range: the evidence then has no maximum within it."""


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
    """Train networks that `build` makes, in float64 on standardised data, and keep the one of the largest evidence.

    likelihood       GaussianLikelihood() has its σ tuned; any other is taken as it is
    prior_precision  δ; None: tuned
    targets          in the canonical form of the likelihood: N × K for a regression, N labels for classes
    """
    if restarts < 1 or max_rounds < 1:
        raise InputError(f"expected restarts ≥ 1 and max_rounds ≥ 1; got {restarts} and {max_rounds}.")
    weights = initial_weights(build, [seed * 1000 + position for position in range(restarts)])
    with global_states_kept():  # a fresh module draws its first weights
        network, fitted = build(), build()
    problem = _RestartProblem.of(network, inputs, targets, likelihood, prior_precision)
    search, rounds = _Search(problem, weights), 0
    with bar("training and tuning in turns", max_rounds) as advance:
        while rounds < max_rounds and len(search.active):
            search.round()
            rounds += 1
            advance(f"best log evidence so far {search.evidence.max().item():.2f}")
    return search.finished(fitted, rounds)


@dataclass(frozen=True, eq=False)
class _RestartProblem:
    """The data, and what of δ and σ is open."""

    network: nn.Module
    inputs: Float[Tensor, "1 N *in"]
    targets: Shaped[Tensor, "1 N *out"]
    likelihood: Likelihood
    """With σ = 1 where it is open."""
    given: float | None
    """δ, where it is."""
    spread: float | None
    """That of the targets, where σ is open."""

    @staticmethod
    def of(
        network: nn.Module, inputs: Tensor, targets: Tensor, likelihood: Likelihood, given: float | None
    ) -> _RestartProblem:
        if not likelihood.is_open:
            return _RestartProblem(network, inputs[None], targets[None], likelihood, given, None)
        return _RestartProblem(network, inputs[None], targets[None], GaussianLikelihood(1.0), given, spread(targets))

    @property
    def fixed(self) -> bool:
        """Whether nothing is left to tune."""
        return self.given is not None and self.spread is None

    @property
    def bounds(self) -> tuple[float, float]:
        """Of log λ."""
        if self.spread is None:
            return log(RANGE[0]), log(RANGE[1])
        if self.given is None:
            return log(RANGE[0] * self.spread**2), log(RANGE[1] * self.spread**2)
        low, high = (log(self.given * (share * self.spread) ** 2) for share in _SIGMAS)
        return low, high

    def first(self, count: int) -> Float[Tensor, " B"]:
        """log λ that members begin with, from strong priors to weak ones; the middle one for a single member."""
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
        """σ² of a network that explains three quarters of the targets; 1 where σ is not open."""
        return 1.0 if self.spread is None else 0.25 * self.spread**2

    def at_edge(self, place: float, variance: float) -> bool:
        """Whether log λ or σ² is at an end of its range."""
        ends = [abs(place - end) < 1e-6 for end in self.bounds] if not self.fixed else []
        if self.spread is not None:
            low, high = ((share * self.spread) ** 2 for share in _SIGMAS)
            ends.append(not low * (1 + 1e-6) < variance < high * (1 - 1e-6))
        return any(ends)

    def ensemble(self, product: Float[Tensor, " B"]) -> Ensemble:
        """The losses with these λ."""
        return Ensemble(self.network, self.inputs, self.targets, self.likelihood, product)

    def evidence(
        self, ensemble: Ensemble, weights: Float[Tensor, "B P"], *, hopeful: bool = False
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """The log evidence, −∞ where there is none, and σ² (1 where it is not open).

        Weights that are no minimum are charged by what a step would gain; `hopeful`: as if it had been taken.
        """
        variance = self._variance(ensemble, weights)
        curvature, own = ensemble.curvature(weights), None if self.spread is None else variance
        if hopeful:
            found = ensemble.evidence(weights, curvature, own)
        else:
            found = ensemble.cautious_evidence(weights, curvature, own)
        return found.nan_to_num(nan=-torch.inf), variance

    def _variance(self, ensemble: Ensemble, weights: Float[Tensor, "B P"]) -> Float[Tensor, " B"]:
        """That of the largest evidence with these weights and λ, or that of a given δ."""
        product = ensemble.prior_precision[:, 0]
        if self.spread is None:
            return torch.ones_like(product)
        if self.given is not None:
            return product / self.given
        with torch.no_grad():
            total = 2 * ensemble.loss(weights)
        low, high = ((share * self.spread) ** 2 for share in _SIGMAS)
        return (total / self.targets.numel()).clamp(low, high)


class _Search:
    """For each member the best that it has seen, and the step that it tries next."""

    def __init__(self, problem: _RestartProblem, weights: Float[Tensor, "B P"]) -> None:
        self.problem, self.first = problem, weights
        self.place = problem.first(len(weights))
        self.weights = weights.clone()
        self.evidence = torch.full((len(weights),), -torch.inf, dtype=torch.float64)
        self.variance = torch.full_like(self.evidence, problem.first_variance)
        middle = self.place.mean()
        self.direction = torch.where(self.place > middle, -1.0, 1.0).double()
        self.length = torch.zeros(len(weights), dtype=torch.float64)  # the first round is where the member begins
        self.worse_sides = torch.zeros(len(weights), dtype=torch.long)
        self._begun = False

    @property
    def active(self) -> Int[Tensor, " b"]:
        """Members whose steps are not short yet."""
        if not self._begun:
            return torch.arange(len(self.weights))
        return (self.length >= _SHORT).nonzero()[:, 0]

    def round(self) -> None:
        """One step of each active member: train with the new λ from the best weights; keep what is better."""
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
        """Near a minimum; trainings that promise no more than the best of their member are left early.

        What they promise is the evidence after one more step, if the features stayed as they are: a guess.
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
        """Those that moved go on, and what they come from is worse; the others turn round, or take shorter steps."""
        self.worse_sides[moved] = 1
        self.worse_sides[stayed] += 1
        self.direction[stayed] *= -1
        both = stayed[self.worse_sides[stayed] > 1]
        self.length[both] *= _SHORTER
        self.worse_sides[both] = 0

    def _start(self, own: Int[Tensor, " b"]) -> Float[Tensor, "b P"]:
        """The best weights; the first ones where a strong prior left nothing of them."""
        vanished: Bool[Tensor, "b 1"] = (
            self.weights[own].norm(dim=1) < _VANISHED * self.first[own].norm(dim=1)
        ).unsqueeze(1)
        return torch.where(vanished, self.first[own], self.weights[own])

    def finished(self, network: nn.Module, rounds: int) -> Fitted:
        """The best member, at its minimum."""
        if not self.evidence.isfinite().any():
            raise DivergedError("No start led to a finite evidence: look at the scale of inputs and targets.")
        own = self._best_at_its_minimum()
        weights, place, variance = self.weights[own], self.place[own], self.variance[own]
        ensemble = self.problem.ensemble(place.exp())
        curvature = ensemble.curvature(weights)
        evidence = ensemble.evidence(weights, curvature, None if self.problem.spread is None else variance)
        if not evidence.isfinite():
            raise DivergedError("The last training led to no finite evidence: look at the scale of inputs and targets.")
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
            tuple(self.evidence.tolist()),
            self.problem.at_edge(place.item(), variance.item()),
        )

    def _best_at_its_minimum(self) -> Int[Tensor, " 1"]:
        """Train the best to the end; where another one is better than what it comes to, that one; and so on."""
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
