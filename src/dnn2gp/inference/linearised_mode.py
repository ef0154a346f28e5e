"""The mode of the linearised network: damped Newton steps on its convex loss, with new r and Λ and fixed J.

With t = θ − w, f = f_w + J t and H = V⁻¹ + JᵀΛ(f)J, a step solves

    H d = −g ,      g = Jᵀ r(f) + V⁻¹ (w + t − m)

by conjugate gradients, preconditioned with a posterior covariance Σ̃ at an earlier point, and goes along d to where the
loss is smallest. A new posterior is computed once the iterations have cost as much as its factorisation.

A classifier that is certain of most examples has Λ ≈ 0 there and r ≈ 0 or ±1, so Newton steps go back and forth
between kinks. The search then begins with the smoother loss T ℓ(y, f/T), which has the same slopes far from the kinks,
and T decreases to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FactoredJacobian
from dnn2gp.inference.base import Inference, Posterior
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.likelihoods import ClassificationLikelihood, Likelihood
from dnn2gp.support.errors import InputError, NotConvergedError
from dnn2gp.support.memory import holding
from dnn2gp.support.progress import bar
from dnn2gp.support.resumable import remembered
from dnn2gp.weights.expansion import Expansion

# The search ends where the next step would move no output by more posterior standard deviations than this.
_TOLERANCE = 1e-7
_SINGLE = 1e-4
_STEPS = 100
_ITERATIONS = 300
_HALVINGS = 40
# A step ends where the slope of the loss is at most this share of what it was, and at most at this multiple.
_FLAT, _LONGEST = 0.1, 1024.0
# Matrices of the size of a posterior that exist while the next one is computed.
_MATRICES = 3
# Logits are divided by T while they are larger than this in the mean, and T is divided by that.
_CERTAIN, _COOLING = 10.0, 4.0
Product = Callable[[Float[Tensor, " P"]], Float[Tensor, " P"]]


def linearised_mode(
    start: Posterior | Callable[[], Posterior], likelihood: Likelihood, tolerance: float | None = None
) -> LinearModel:
    """The linear model with its sites at the mode of the linearised network, starting from those of a posterior.

    Args:
        start: The posterior of a linear model, exact or not: the mode does not depend on it. If it is a function that
            makes one, the search counts its memory, and frees it once it is no longer needed.
        likelihood: The likelihood of the training data.
        tolerance: The search ends where the next step would move no output by more posterior standard deviations than
            this; by default, where it is rounding.

    Raises:
        NotConvergedError: If the loss of a custom likelihood is not convex, or has no minimum.
    """
    search = (
        _Search.start(start, likelihood, counted=False)
        if isinstance(start, Posterior)
        else _Search.start(start(), likelihood, counted=True)
    )
    tolerance = max(search.rounding, _TOLERANCE if tolerance is None else tolerance)
    found = remembered("mode", partial(search.ended, tolerance))
    search.moved, search.outputs = found["moved"].to(search.moved), found["outputs"].to(search.outputs)
    return search.model()


@final
@dataclass(eq=False)
class _Search:
    """The state of the search, in float64."""

    likelihood: Likelihood
    linear: LinearModel
    """The linear model at the start."""
    posterior: Posterior | None
    """Whose Σ̃ preconditions the conjugate gradients; none while the next one takes its place in memory."""
    counted: bool
    """Whether the memory of this posterior is counted here, and not by the caller."""
    method: Inference
    jacobian: FactoredJacobian
    """J of the training data."""
    expansion: Expansion
    """The sites at the start."""
    targets: Tensor
    moved: Float[Tensor, " P"]
    """t = θ − w."""
    outputs: Float[Tensor, "N K"]
    """f_w + J t."""
    spent: float = 0.0
    """Operations of the iterations since the last factorisation."""
    decrement: float = torch.inf
    """√(gᵀ H⁻¹ g) of the last step."""
    temperature: float = 1.0
    """T of the smoothed loss T ℓ(y, f/T)."""
    stalled: bool = False
    """Whether the loss no longer decreases because of rounding."""

    @staticmethod
    def start(posterior: Posterior, likelihood: Likelihood, *, counted: bool) -> _Search:
        expansion = posterior.model.expansion
        if expansion.targets is None or expansion.features.num_outputs != expansion.residual.shape[1]:
            raise InputError(
                "mean: the mode of the linearised network needs Gauss-Newton features and the targets of the training "
                "data. Use mean=NetworkOutput()."
            )
        features, inputs = expansion.features, expansion.inputs
        reserve = _MATRICES * posterior.bytes // 2
        dtype = torch.float64 if posterior.exact else expansion.anchor.dtype
        jacobian = FactoredJacobian(features, inputs, dtype=dtype, reserve=reserve, columns=1)
        zero = torch.zeros_like(expansion.anchor, dtype=torch.float64)
        moved = zero if expansion.moved is None else expansion.moved
        targets = expansion.targets
        targets = targets.double() if targets.is_floating_point() else targets
        outputs = features.outputs(inputs).double()
        model, method = posterior.model, posterior.method
        search = _Search(likelihood, model, posterior, counted, method, jacobian, expansion, targets, moved, outputs)
        if expansion.moved is not None:
            with search.holding_posterior():
                search.outputs += search.push(moved)
        if isinstance(likelihood, ClassificationLikelihood):
            mean = expansion.team.total(search.outputs.abs().sum().item())
            mean /= expansion.num_examples * search.outputs.shape[1]
            search.temperature = max(1.0, mean / _CERTAIN)
        return search

    @property
    def rounding(self) -> float:
        """Steps below this are rounding: where J does not fit into memory, products with it have its dtype."""
        single = self.expansion.features.anchor.dtype != torch.float64
        narrow = self.by_passes or self.jacobian.dtype != torch.float64 or not self.jacobian.kept()
        return self.expansion.team.largest(_SINGLE if single and narrow else 0.0)

    @property
    def by_passes(self) -> bool:
        """Whether products with J are passes through the network, because its factors have too many rows."""
        return self.expansion.columns is not None

    def push(self, weights: Float[Tensor, " P"]) -> Float[Tensor, "N K"]:
        """J t."""
        features, inputs = self.expansion.features, self.expansion.inputs
        if self.by_passes:
            return features.jvp(inputs, weights[:, None].to(features.anchor.dtype))[..., 0].double()
        pushed = self.jacobian.push(weights[:, None].to(self.jacobian.dtype))
        return pushed.reshape(self.jacobian.num_examples, -1).double()

    def pull(self, sites: Float[Tensor, "N K"]) -> Float[Tensor, " P"]:
        """Jᵀ u."""
        if self.by_passes:
            features = self.expansion.features
            return features.vjp(self.expansion.inputs, sites.unsqueeze(2).to(features.anchor.dtype))[:, 0].double()
        return self.jacobian.pull(sites.reshape(-1, 1).to(self.jacobian.dtype))[:, 0].double()

    def prior(self, weights: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        """V⁻¹ v."""
        return self.linear.prior.precision.matmul(weights[:, None].double())[:, 0].double()

    def holding_posterior(self) -> AbstractContextManager[None]:
        """A context in which the memory of the posterior is taken."""
        assert self.posterior is not None
        return holding(self.posterior.bytes if self.counted else 0)

    def ended(self, tolerance: float) -> dict[str, Tensor]:
        """Take steps until the next one would be below the tolerance; t and f there."""
        with bar("mode of the linearised network", _STEPS) as advance:
            for _ in range(_STEPS):
                self.step()
                advance(f"step size {self.decrement:.1g}")
                if self.decrement <= tolerance or self.stalled:
                    return {"moved": self.moved, "outputs": self.outputs}
        raise NotConvergedError(
            f"The mode of the linearised network was not found in {_STEPS} Newton steps (the next one would move an "
            f"output by {self.decrement:.1g} posterior standard deviations). Use mean=NetworkOutput(), or a larger "
            "prior precision δ."
        )

    def step(self) -> None:
        """One damped Newton step, and a new posterior once that pays off."""
        found = remembered("step", self._newton_step)
        self.moved, self.outputs = found["moved"].to(self.moved), found["outputs"].to(self.outputs)
        self.decrement, self.temperature, stalled, iterations = found["numbers"].tolist()
        self.stalled = bool(stalled)
        self._refactor(int(iterations))

    def _newton_step(self) -> dict[str, Tensor]:
        """A Newton step: where it leads, and the number of iterations that it took."""
        with self.holding_posterior():
            iterations = self._newton_move()
        numbers = torch.tensor(
            [self.decrement, self.temperature, float(self.stalled), float(iterations)], dtype=torch.float64
        )
        return {"moved": self.moved, "outputs": self.outputs, "numbers": numbers}

    def _newton_move(self) -> int:
        """The number of iterations that it took."""
        residual = self.likelihood.residual(self.outputs / self.temperature, self.targets)
        centre = self.linear.prior.mean.double()
        gap = self.expansion.features.anchor.double() + self.moved - centre
        gradient = self.pull(residual) + self.prior(gap)

        curvature = self._curvature()
        direction, iterations = conjugate_gradients(curvature, -gradient, self._precondition, self._accuracy())
        self.decrement = max(0.0, -(gradient @ direction).item()) ** 0.5
        size = self._move(direction, gradient, gap)
        if self.temperature == 1:
            self.stalled = size == 0
        elif self.decrement < 1 or size == 0:
            self.temperature, self.decrement = max(1.0, self.temperature / _COOLING), torch.inf
        return iterations

    def _curvature(self) -> Product:
        """H = V⁻¹ + JᵀΛJ with all columns of Λ, without a root S of K columns per example if the sites have fewer."""
        f = self.outputs / self.temperature
        if self.by_passes:

            def without_root(vector: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
                bent = self.likelihood.noise_precision_matmul(f, self.push(vector), self.targets)
                return self.prior(vector) + self.pull(bent / self.temperature)

            return without_root
        root = self.likelihood.noise_precision_root(f, self.targets) / self.temperature**0.5

        def by_root(vector: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
            bent = self.jacobian.curvature(vector[:, None].to(self.jacobian.dtype), root)
            return self.prior(vector) + bent[:, 0].double()

        return by_root

    def _accuracy(self) -> float:
        """How accurately to solve for the step: more and more, so that the convergence stays quadratic."""
        return max(1e-9, min(0.1, self.decrement))

    def _precondition(self, vector: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        assert self.posterior is not None
        return self.posterior.precondition(vector[:, None])[:, 0]

    def _move(self, direction: Float[Tensor, " P"], gradient: Float[Tensor, " P"], gap: Float[Tensor, " P"]) -> float:
        """Go along the direction to where the loss is smallest; where it changes by rounding only, the whole step."""
        team, pushed, bent = self.expansion.team, self.push(direction), self.prior(direction)
        linear, square = (gap @ bent).item(), (direction @ bent).item()

        def slope(size: float) -> float:
            residual = self.likelihood.residual((self.outputs + size * pushed) / self.temperature, self.targets)
            return team.total((residual * pushed).sum().item()) + linear + size * square

        loss = team.total(self.likelihood.loss(self.outputs, self.targets).sum().item())
        rounding = 1e-13 * (abs(loss) + abs((gap @ self.prior(gap)).item()))
        size = 1.0 if -(gradient @ direction).item() <= rounding else line_minimum(slope)
        self.moved, self.outputs = self.moved + size * direction, self.outputs + size * pushed
        return size

    def _refactor(self, iterations: int) -> None:
        """A posterior at the present point, once the iterations have cost as much as its factorisation."""
        expansion = self.expansion
        M, P = expansion.num_sites, expansion.features.num_weights
        cost = self.method.cost(M, P)
        self.spent += iterations * (4.0 * M * P + 4.0 * cost.size**2)
        if self.spent > cost.operations and self.decrement > _TOLERANCE:
            self.posterior, self.spent = None, 0.0
            with holding(self.jacobian.kept_bytes):
                self.posterior, self.counted = self.method.rough(self.model()), True

    def model(self) -> LinearModel:
        """The linear model with the sites at the present point, around which it predicts."""
        expansion = self.expansion.relinearised(self.likelihood, self.outputs, self.moved)
        return replace(self.linear, expansion=expansion, centre=self.moved)


def line_minimum(slope: Callable[[float], float]) -> float:
    """A step size near the minimum of a convex function, from its slope: 1 if that is near enough.

    Where a network is certain, Λ is nearly zero and a Newton step much too long: steps that were only halved until the
    loss decreased would go back and forth between the examples that are certain before and after.
    """
    enough = _FLAT * abs(slope(0.0))
    low, high = 0.0, 1.0
    found = slope(high)
    while found < -enough and high < _LONGEST:
        low, high = high, 2 * high
        found = slope(high)
    if found <= enough:  # not if it is NaN, from an overflow
        return high
    for _ in range(_HALVINGS):
        size = (low + high) / 2
        found = slope(size)
        if abs(found) <= enough:
            return size
        low, high = (size, high) if found < 0 else (low, size)
    return low


def conjugate_gradients(
    matrix: Product, right: Float[Tensor, " P"], precondition: Product, accuracy: float
) -> tuple[Float[Tensor, " P"], int]:
    """x with A x ≈ b, and the number of products with A.

    The residual is reduced by the factor `accuracy`, in the norm of the preconditioner. Stopped early, x is still a
    direction of descent of ½ xᵀAx − bᵀx.
    """
    solution, residual = torch.zeros_like(right), right
    solved = precondition(residual)
    direction, size = solved, (residual @ solved).item()
    enough = accuracy**2 * size
    for iteration in range(_ITERATIONS):
        if size <= enough:
            return solution, iteration
        product = matrix(direction)
        length = size / (direction @ product).item()
        solution, residual = solution + length * direction, residual - length * product
        solved = precondition(residual)
        size, before = (residual @ solved).item(), size
        direction = solved + size / before * direction
    return solution, _ITERATIONS
