"""A small network from several starts at once: training, and choosing δ and σ by the evidence, in turns.

What the estimators and the command line do with a table. A round of all members together is some Gauss-Newton steps;
then, for each member, the δ and σ of the largest Laplace evidence, from the eigenvalues of JᵀΛJ at its weights. Starts
differ in first weights and in their first δ: one that begins with a weak prior may end in a network that overfits,
where a stronger one would have led to a larger evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dnn2gp.ensemble import Curvature, Ensemble, initial_weights, write_weights
from dnn2gp.errors import DivergedError, InputError
from dnn2gp.evidence_function import RANGE
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.minimise import minimise
from dnn2gp.progress import track
from dnn2gp.randomness import global_states_kept
from dnn2gp.spectrum import Spectrum, UncorrectedNoise

# Powers of ten between which the first δ of the members lie, and the first σ as a share of the targets' spread.
_FIRST_DELTAS, _FIRST_NOISE = (0.0, 2.0), 0.5
# Steps of a round, and the gradient below which a round ends before: the choice of δ needs no exact minimum.
_STEPS, _ROUGH, _EXACT = 30, 1e-3, 1e-5
# Rounds end once no member's log δ or log σ moves by more than this.
_SETTLED = 0.05


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
    """Those of all members at their best."""


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
    search = _Search(network, inputs, targets, likelihood, prior_precision, weights)
    rounds, settled = 0, search.fixed
    for _ in track(range(max_rounds), "training and tuning in turns", total=max_rounds):
        rounds += 1
        moved = search.round(max_steps=_STEPS if not search.fixed else 500)
        settled = moved < _SETTLED
        if settled:
            break
    return search.finished(fitted, rounds, settled)


class _Search:
    """All members: their weights, δ and σ now, and the best that each has seen."""

    def __init__(
        self,
        network: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        likelihood: Likelihood,
        prior_precision: float | None,
        weights: Float[Tensor, "B P"],
    ) -> None:
        self.noise = likelihood.is_open
        self.unit = likelihood if not self.noise else GaussianLikelihood(1.0)
        self.network, self.inputs, self.targets = network, inputs[None], targets[None]
        self.weights, self.given = weights, prior_precision
        first = torch.logspace(*_FIRST_DELTAS, len(weights), dtype=torch.float64).flip(0)
        self.delta = first if prior_precision is None else torch.full_like(first, prior_precision)
        spread = targets.double().std(0, correction=0).mean().item() if self.noise else 1.0
        self.spread = spread if spread > 0 else 1.0
        self.sigma = torch.full_like(first, _FIRST_NOISE * self.spread if self.noise else 1.0)
        self.best_evidence = torch.full((len(weights),), -torch.inf, dtype=torch.float64)
        self.best = (weights.clone(), self.delta.clone(), self.sigma.clone())

    @property
    def fixed(self) -> bool:
        """Whether nothing is left to tune."""
        return self.given is not None and not self.noise

    def round(self, max_steps: int) -> float:
        """Train a little, note the evidence, choose δ and σ anew; returns the largest change of their logarithms."""
        ensemble = self._ensemble(self.delta * self.sigma**2)
        found = minimise(ensemble, self.weights, tolerance=_ROUGH, max_iterations=max_steps)
        self.weights = found.weights
        curvature = ensemble.curvature(found.weights)
        self._note(ensemble, curvature)
        if self.fixed:
            return 0.0
        values = torch.linalg.eigvalsh(curvature.matrix).clamp(min=0)
        losses = ensemble.data_loss(found.weights)
        before = torch.stack([self.delta.log(), self.sigma.log()])
        for member in range(len(self.weights)):
            self._choose(member, values[member], losses[member].item())
        return (torch.stack([self.delta.log(), self.sigma.log()]) - before).abs().max().item()

    def _choose(self, member: int, eigenvalues: Float[Tensor, " P"], loss: float) -> None:
        """δ and σ of the largest Laplace evidence at the member's weights."""
        penalty = self.weights[member].square().sum().item()
        noise = UncorrectedNoise(0.0, 2 * loss, self._sites) if self.noise else None
        spectrum = Spectrum(eigenvalues, -loss, penalty, noise)
        now = (self.delta[member].item(), self.sigma[member].item())
        best = spectrum.maximise(precision=self.given is None, noise=self.noise, bounds=RANGE, begin=now)
        self.delta[member] = best.precision_scale.clamp(*RANGE)
        if self.noise:
            self.sigma[member] = best.noise_scale.clamp(1e-4 * self.spread, 1e4 * self.spread)

    def _note(self, ensemble: Ensemble, curvature: Curvature) -> None:
        """Keep the weights, δ and σ of members that are better than they were."""
        evidence = self._evidence(ensemble, curvature, at_weights=True)  # no reward for a gradient that is left
        better = evidence > self.best_evidence
        self.best_evidence = torch.where(better, evidence, self.best_evidence)
        for kept, now in zip(self.best, (self.weights, self.delta, self.sigma), strict=True):
            kept[better] = now[better]

    def _evidence(self, ensemble: Ensemble, curvature: Curvature, *, at_weights: bool = False) -> Float[Tensor, " B"]:
        variance = self.sigma.square() if self.noise else None
        return ensemble.evidence(self.weights, curvature, variance, at_weights=at_weights)

    @property
    def _sites(self) -> int:
        return self.targets[0].numel()

    def _ensemble(self, prior_precision: Float[Tensor, " B"]) -> Ensemble:
        return Ensemble(self.network, self.inputs, self.targets, self.unit, prior_precision)

    def finished(self, network: nn.Module, rounds: int, settled: bool) -> Fitted:
        """The best member, at its minimum."""
        if not self.best_evidence.isfinite().any():
            raise DivergedError("No start led to a finite evidence: look at the scale of inputs and targets.")
        member = int(self.best_evidence.nan_to_num(nan=-torch.inf).argmax())
        weights, delta, sigma = (each[member : member + 1] for each in self.best)
        ensemble = self._ensemble(delta * sigma**2)
        found = minimise(ensemble, weights, tolerance=_EXACT, max_iterations=300)
        write_weights(network, found.weights[0])
        self.weights, self.delta, self.sigma = found.weights, delta, sigma
        evidence = self._evidence(ensemble, ensemble.curvature(found.weights)).item()
        likelihood = GaussianLikelihood(sigma.item()) if self.noise else self.unit
        return Fitted(
            network,
            likelihood,
            delta.item(),
            evidence,
            found.relative_gradient.item(),
            rounds,
            settled,
            tuple(self.best_evidence.tolist()),
        )
