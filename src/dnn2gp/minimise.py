"""Trainings to a minimum: many small networks at once by damped Gauss-Newton steps, one large network by L-BFGS.

    w ← w − (JᵀΛJ + (δ + μ) I)⁻¹ ∇ℓ̄(w),        ∇ℓ̄(w) = Jᵀr + δ w

The damping μ of each network falls where its quadratic model was right and rises where it was not (Levenberg and
Marquardt, with Nielsen's rule for μ).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.ensemble import Curvature, Ensemble
from dnn2gp.errors import DivergedError
from dnn2gp.progress import track

_FIRST_DAMPING = 1.0
# A damping above this moves no weight of a float64 network any more: the training rests where it is.
_LAST_DAMPING = 1e14


@dataclass(frozen=True, eq=False)
class Minima:
    """Where the trainings of an ensemble ended."""

    weights: Float[Tensor, "B P"]
    loss: Float[Tensor, " B"]
    """Σᵢ ℓᵢ(w) + ½ δ wᵀw."""
    relative_gradient: Float[Tensor, " B"]
    """‖∇ℓ̄‖ / (‖Jᵀr‖ + ‖δw‖): 0 at a minimum, up to 1 elsewhere."""
    iterations: int
    """Of the slowest."""


def minimise(
    ensemble: Ensemble, weights: Float[Tensor, "B P"], *, tolerance: float = 1e-6, max_iterations: int = 500
) -> Minima:
    """Train every member from its `weights` until its relative gradient is below `tolerance`."""
    state = _State.start(ensemble, weights.double())
    for iteration in track(range(max_iterations), "training to a minimum", total=max_iterations):
        active = state.active(tolerance)
        if not len(active):
            return state.result(iteration)
        state.step(active)
    return state.result(max_iterations)


class _State:
    """Weights, curvature and damping of all members; a step changes those of the active ones."""

    def __init__(
        self, ensemble: Ensemble, weights: Tensor, loss: Tensor, curvature: Curvature, damping: Tensor, growth: Tensor
    ) -> None:
        self.ensemble, self.weights, self.loss = ensemble, weights, loss
        self.matrix, self.gradient, self.relative = (
            curvature.matrix,
            curvature.gradient,
            curvature.relative_gradient.clone(),
        )
        self.damping, self.growth = damping, growth

    @staticmethod
    def start(ensemble: Ensemble, weights: Tensor) -> _State:
        loss = ensemble.loss(weights)
        if not loss.isfinite().all():
            member = int((~loss.isfinite()).nonzero()[0])
            raise DivergedError(f"The loss of member {member} is {loss[member].item()} at its first weights.")
        curvature = ensemble.curvature(weights)
        ones = torch.ones(len(weights), dtype=torch.float64)
        return _State(ensemble, weights.clone(), loss, curvature, _FIRST_DAMPING * ones, 2 * ones)

    def active(self, tolerance: float) -> Tensor:
        """The members that are not yet at a minimum, nor stuck."""
        return ((self.relative > tolerance) & (self.damping < _LAST_DAMPING)).nonzero()[:, 0]

    def step(self, active: Tensor) -> None:
        """One damped Gauss-Newton step of each active member; a step that does not lower the loss is taken back."""
        members = self.ensemble.take(active)
        weights, gradient, damping = self.weights[active], self.gradient[active], self.damping[active]
        precision = self.matrix[active]
        precision.diagonal(dim1=1, dim2=2).add_((members.prior_precision + damping)[:, None])
        factor, failed = torch.linalg.cholesky_ex(precision)
        move = torch.cholesky_solve(gradient[..., None], factor)[..., 0]
        trial = weights - move
        loss = members.loss(trial)
        predicted = 0.5 * (move * (damping[:, None] * move + gradient)).sum(1)
        gain = (self.loss[active] - loss) / predicted
        better = (failed == 0) & loss.isfinite() & (gain > 0) & (predicted > 0)
        self._accept(active[better], trial[better], loss[better], gain[better])
        worse = active[~better]
        self.damping[worse] *= self.growth[worse]
        self.growth[worse] *= 2

    def _accept(self, members: Tensor, weights: Tensor, loss: Tensor, gain: Tensor) -> None:
        if not len(members):
            return
        curvature = self.ensemble.take(members).curvature(weights)
        self.weights[members], self.loss[members] = weights, loss
        self.matrix[members], self.gradient[members] = curvature.matrix, curvature.gradient
        self.relative[members] = curvature.relative_gradient
        self.damping[members] *= (1 - (2 * gain.clamp(max=1.5) - 1) ** 3).clamp(min=1 / 3, max=2.0)
        self.growth[members] = 2.0

    def result(self, iterations: int) -> Minima:
        return Minima(self.weights, self.loss, self.relative, iterations)
