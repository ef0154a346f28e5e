"""Restarts for networks whose P × P matrices are too large to factorise in every step of the training.

As in `restarts.py`, the evidence is searched along log λ (λ = δσ², or δ for classes) at minima of the loss. But the
weights are trained with L-BFGS, one network after another, and only the best start is searched any further. A training
run costs O(N P) per step. The evidence is that of the exact GP, in weight space or in function space, whichever has the
smaller matrix, up to a size of min(P, N K) = `EXACT_SIZE`. Beyond that it is that of Kronecker(), which costs O(N P).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.gp.convert import convert
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.inference import GaussNewtonStep
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.network.data import Data
from dnn2gp.support.errors import (
    DivergedError,
    IllConditionedError,
    NotAMinimumWarning,
    NotFiniteError,
    NotPositiveDefiniteError,
)
from dnn2gp.support.progress import bar
from dnn2gp.tune.ensemble import initial_weights, read_weights, write_weights
from dnn2gp.tune.line_search import LineSearch
from dnn2gp.tune.minimise import lbfgs
from dnn2gp.tune.ranking import ByCautiousEvidence
from dnn2gp.tune.restart_problem import Fitted, RestartProblem
from dnn2gp.weights.structures import Kronecker, Structure

EXACT_SIZE = 10_000
"""The largest min(P, N K) for which the exact evidence is computed: a matrix of 800 MB."""
# The first step in log λ, and the length at which the search ends.
_LONG, _SHORT = log(6.0), 0.25
# Training ends when a step lowers the loss by less than this share of it: during the search, and at the end.
_ROUGH, _FINE = 1e-7, 1e-12
# Weights whose norm is below this fraction of the initial one have collapsed: training restarts from the initial ones.
_VANISHED = 1e-3
_FAILED = (DivergedError, IllConditionedError, NotFiniteError, NotPositiveDefiniteError)


@final
@dataclass(frozen=True, eq=False)
class _Place:
    """A network at a minimum for one λ."""

    log_product: float
    """log λ."""
    weights: Float[Tensor, " P"]
    first: Float[Tensor, " P"]
    """The initial weights."""
    variance: float = 1.0
    """σ², or 1 if it is not open."""
    score: float = -inf
    """The evidence minus ½ gᵀΣ̃g; −∞ if it could not be computed."""


def fit_large(
    build: Callable[[], nn.Module], problem: RestartProblem, restarts: int, seed: int, max_rounds: int
) -> Fitted:
    """Train networks made by `build` from several starts, and search λ from the one with the largest evidence."""
    search = _Search(build(), problem)
    weights = initial_weights(build, [seed * 1000 + position for position in range(restarts)])
    with bar("training and tuning", restarts + max_rounds) as advance:
        best = None
        for log_product, own in zip(problem.first(restarts).tolist(), weights, strict=True):
            here = search.trained(_Place(log_product, own, own), log_product)
            best = here if best is None or here.score > best.score else best
            advance(f"best log evidence so far {best.score:.2f}")
        assert best is not None
        line, rounds = LineSearch(0.0 if problem.fixed else _LONG, -1.0), 1
        low, high = problem.bounds
        while line.length >= _SHORT and rounds < max_rounds:
            here = search.trained(best, min(max(best.log_product + line.step, low), high))
            line.learn(here.score > best.score)
            best = here if here.score > best.score else best
            rounds += 1
            advance(f"best log evidence so far {best.score:.2f}")
    if best.score == -inf:
        raise DivergedError("No initialisation has a finite evidence. Check the scale of inputs and targets.")
    return search.finished(best, rounds, settled=line.length < _SHORT)


class _Search:
    """The data, one module whose weights are trained in place, and how the evidence is computed."""

    def __init__(self, network: nn.Module, problem: RestartProblem) -> None:
        self.network, self.problem = network, problem
        self.data = Data(problem.inputs[0], problem.targets[0])
        self.smaller = min(problem.num_weights, problem.num_sites)

    @property
    def structure(self) -> Structure | None:
        """None for the exact evidence."""
        return None if self.smaller <= EXACT_SIZE else Kronecker()

    def trained(self, start: _Place, log_product: float, tolerance: float = _ROUGH) -> _Place:
        """The minimum for this λ that training reaches from a place, or from its initial weights if it collapsed."""
        collapsed = start.weights.norm() < _VANISHED * start.first.norm()
        write_weights(self.network, start.first if collapsed else start.weights)
        product = torch.full_like(start.weights, log_product).exp()
        try:
            lbfgs(self.network, self.data, self.problem.likelihood, product, tolerance=tolerance)
            weights = read_weights(self.network).double()
            variance = self._variance(weights, log_product)
            here = replace(start, log_product=log_product, weights=weights, variance=variance)
            return replace(here, score=ByCautiousEvidence().score(self._gp(here)))
        except _FAILED:
            return replace(start, log_product=log_product, score=-inf)

    def finished(self, best: _Place, rounds: int, *, settled: bool) -> Fitted:
        """The best place, trained more closely to its minimum."""
        end = self.trained(best, best.log_product, _FINE)
        end = best if end.score == -inf else end
        write_weights(self.network, end.weights)
        gp = self._gp(end)
        return Fitted(
            self.network,
            self._likelihood(end.variance),
            self._delta(end),
            gp.evidence().value,
            gp.model.relative_gradient(),
            rounds,
            settled,
            self.problem.at_edge(end.log_product, end.variance),
            self.structure,
        )

    def _gp(self, place: _Place) -> GaussianProcess:
        """The uncalibrated GP of the module, which has the weights of this place."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotAMinimumWarning)
            return convert(
                self.network,
                (self.data.inputs, self.data.targets),
                self._likelihood(place.variance),
                self._delta(place),
                mean=GaussNewtonStep(),
                structure=self.structure,
            )

    def _likelihood(self, variance: float) -> Likelihood:
        return self.problem.likelihood if self.problem.spread is None else GaussianLikelihood(variance**0.5)

    def _delta(self, place: _Place) -> float:
        return torch.tensor(place.log_product, dtype=torch.float64).exp().item() / place.variance

    def _variance(self, weights: Float[Tensor, " P"], log_product: float) -> float:
        """The σ² with the largest evidence for these weights and λ, or that of a given δ."""
        product = torch.tensor([log_product], dtype=torch.float64).exp()
        with torch.no_grad():
            misfit = self._misfit() if self.problem.spread is not None else weights.new_zeros(())
        return self.problem.variance(2 * misfit + product * weights.square().sum(), product).item()

    def _misfit(self) -> Float[Tensor, ""]:
        """½ ‖y − f‖², of the module."""
        return self.problem.likelihood.loss(self.network(self.data.inputs), self.data.targets).sum()
