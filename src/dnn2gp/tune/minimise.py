"""Training to a minimum: many small networks at once with damped Gauss-Newton steps, or one large network with L-BFGS.

    w ← w − (JᵀΛJ + (δ + μ) I)⁻¹ ∇ℓ̄(w),        ∇ℓ̄(w) = Jᵀr + δ w

The damping μ of each network decreases where its quadratic model was accurate and increases where it was not
(Levenberg-Marquardt, with Nielsen's rule for μ).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.likelihoods import Likelihood
from dnn2gp.network import Network
from dnn2gp.network.data import Data
from dnn2gp.support.errors import DivergedError
from dnn2gp.support.memory import default_budget, require
from dnn2gp.support.progress import track
from dnn2gp.tune.ensemble import Ensemble, EnsembleCurvature, layout_of, write_weights

_FIRST_DAMPING = 1.0
# Up to this many weights, every step factorises a dense matrix over them.
_DENSE = 1500
# Training ends when a step would lower the loss by less than this, in nats.
_NOTHING = 1e-9
# Above this damping, no weight of a float64 network changes any more.
_LAST_DAMPING = 1e14


@dataclass(frozen=True, eq=False)
class Minima:
    """The end points of training the members of an ensemble."""

    weights: Float[Tensor, "B P"]
    loss: Float[Tensor, " B"]
    """Σᵢ ℓᵢ(w) + ½ δ wᵀw."""
    relative_gradient: Float[Tensor, " B"]
    """‖∇ℓ̄‖ / (‖Jᵀr‖ + ‖δw‖): 0 at a minimum, up to 1 elsewhere."""
    iterations: int
    """Steps of the slowest member."""

    @property
    def best(self) -> int:
        """The member with the smallest loss."""
        return int(self.loss.argmin())


def minimise(
    ensemble: Ensemble,
    weights: Float[Tensor, "B P"],
    *,
    tolerance: float = 1e-6,
    gain: Float[Tensor, " B"] | None = None,
    damping: float = _FIRST_DAMPING,
    max_iterations: int = 500,
) -> Minima:
    """Train every member from its weights until its relative gradient is below `tolerance`.

    gain     stop earlier if an undamped Gauss-Newton step would lower the loss of the member by less than this
    damping  the initial μ; small if the weights are already near a minimum
    """
    size = ensemble.layout.num_weights
    require(
        4 * 8 * ensemble.size * size**2,
        default_budget(),
        f"Training {ensemble.size} networks of {size:,} weights with Gauss-Newton steps",
        "Use a smaller network (width, depth) or fewer restarts.",
    )
    state = _Progress.start(ensemble, weights.double(), gain, damping)
    for iteration in track(range(max_iterations), "training to a minimum", total=max_iterations):
        active = state.active(tolerance)
        if not len(active):
            return state.result(iteration)
        state.step(active)
    return state.result(max_iterations)


def train_to_minimum(network: nn.Module, data: Data, likelihood: Likelihood, prior_precision: Tensor) -> None:
    """Train the module in place, in eval mode, to a minimum of Σᵢ ℓᵢ(w) + ½ wᵀ diag(δ) w.

    Uses Gauss-Newton steps up to 1500 weights if torch can batch the network's Jacobians, and L-BFGS otherwise.
    """
    layout, inputs = layout_of(network), data.inputs
    if layout.num_weights <= _DENSE and isinstance(inputs, Tensor) and inputs.is_floating_point():
        start = layout.flatten(dict(network.named_parameters())).detach().double()[None]
        function = Network(network, inputs)
        targets = likelihood.targets_for(data.targets, data.num_examples, function.output_shape, function.dtype)
        ensemble = Ensemble(network, inputs[None], targets[None], likelihood, prior_precision[None])
        if ensemble.batches():
            gain = torch.full((1,), _NOTHING, dtype=torch.float64)
            write_weights(network, minimise(ensemble, start, gain=gain).weights[0])
            return
    lbfgs(network, data, likelihood, prior_precision)


def lbfgs(
    network: nn.Module, data: Data, likelihood: Likelihood, prior_precision: Tensor, *, tolerance: float = 1e-15
) -> None:
    """Train the module in place with SciPy's L-BFGS, with losses and gradients in the dtype of the network.

    tolerance  training ends when a step lowers the loss by less than this share of it
    """
    import scipy.optimize  # takes a while to import

    function = Network(network, data.inputs)
    inputs = function.check_inputs(data.inputs)
    targets = likelihood.targets_for(data.targets, data.num_examples, function.output_shape, function.dtype)
    targets, delta = targets.to(function.device), prior_precision.to(function.weights)

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            weights = torch.from_numpy(point).to(function.weights).requires_grad_()
            total = likelihood.loss(function(weights, inputs), targets).sum() + 0.5 * (delta * weights.square()).sum()
            (gradient,) = torch.autograd.grad(total, weights)
        return total.item(), gradient.double().cpu().numpy()

    options = {"maxiter": 2000, "maxfun": 4000, "maxcor": 20, "ftol": tolerance, "gtol": 1e-9}
    first = function.weights.double().cpu().numpy()
    found = scipy.optimize.minimize(loss, first, jac=True, method="L-BFGS-B", options=options)
    if not np.isfinite(found.fun):
        raise DivergedError(
            f"The loss is {found.fun} after training with L-BFGS. The weights of the network are unchanged."
        )
    write_weights(network, torch.from_numpy(found.x))


class _Progress:
    """The weights, curvature and damping of all members; a step changes those of the active ones."""

    def __init__(
        self,
        ensemble: Ensemble,
        weights: Tensor,
        loss: Tensor,
        curvature: EnsembleCurvature,
        gain: Tensor | None,
        damping: Tensor,
        growth: Tensor,
    ) -> None:
        self.ensemble, self.weights, self.loss = ensemble, weights, loss
        self.matrix, self.gradient, self.relative = (
            curvature.matrix,
            curvature.gradient,
            curvature.relative_gradient.clone(),
        )
        self.damping, self.growth = damping, growth
        self.gain = torch.zeros_like(damping) if gain is None else gain
        self.near = torch.zeros_like(damping, dtype=torch.bool)
        """Members with next to nothing left to gain."""

    @staticmethod
    def start(ensemble: Ensemble, weights: Tensor, gain: Tensor | None, damping: float) -> _Progress:
        loss = ensemble.loss(weights)
        if not loss.isfinite().all():
            member = int((~loss.isfinite()).nonzero()[0])
            raise DivergedError(f"The loss of member {member} is {loss[member].item()} at its initial weights.")
        curvature = ensemble.curvature(weights)
        ones = torch.ones(len(weights), dtype=torch.float64)
        return _Progress(ensemble, weights.clone(), loss, curvature, gain, damping * ones, 2 * ones)

    def active(self, tolerance: float) -> Tensor:
        """The members that are neither at a minimum nor stuck."""
        return ((self.relative > tolerance) & (self.damping < _LAST_DAMPING) & ~self.near).nonzero()[:, 0]

    def step(self, active: Tensor) -> None:
        """One damped Gauss-Newton step of each active member; steps that do not lower the loss are undone."""
        members = self.ensemble.take(active)
        weights, gradient, damping = self.weights[active], self.gradient[active], self.damping[active]
        precision = self.matrix[active]
        precision.diagonal(dim1=1, dim2=2).add_(members.prior_precision + damping[:, None])
        factor, failed = torch.linalg.cholesky_ex(precision)
        move = torch.cholesky_solve(gradient[..., None], factor)[..., 0]
        # ½ gᵀ(H + δ)⁻¹g ≤ (1 + μ/δ) ½ gᵀ(H + δ + μ)⁻¹g, with H = JᵀΛJ
        undamped = 1 + damping / members.prior_precision.amin(1)
        self.near[active] = (failed == 0) & (0.5 * undamped * (gradient * move).sum(1) < self.gain[active])
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
