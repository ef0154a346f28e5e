"""The mode of the linearised network: damped Newton steps on its convex loss, with r and Λ expanded anew at fixed J.

With t = θ − w, f = f_w + J t and H = V⁻¹ + JᵀΛ(f)J, a step solves

    H d = −g ,      g = Jᵀ r(f) + V⁻¹ (w + t − m)

by conjugate gradients, preconditioned with a posterior covariance Σ̃ at an earlier point, and goes along d as far as the
loss decreases. One more posterior is computed where the iterations have cost as much as its factorisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FactoredJacobian
from dnn2gp.inference.base import Posterior
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.likelihoods import Likelihood
from dnn2gp.support.errors import InputError, NotConvergedError
from dnn2gp.support.progress import bar
from dnn2gp.weights.expansion import Expansion

# The search ends where the next step would move no output by more posterior standard deviations than this.
_TOLERANCE = 1e-7
_STEPS = 100
_ITERATIONS = 300
_HALVINGS = 40
# A step must reach this share of the decrease that the gradient promises.
_ARMIJO = 1e-4
Product = Callable[[Float[Tensor, " P"]], Float[Tensor, " P"]]


def linearised_mode(posterior: Posterior, likelihood: Likelihood, tolerance: float | None = None) -> LinearModel:
    """The linear model with its sites at the mode of the linearised network, starting from those of `posterior`.

    Args:
        posterior: The posterior of a linear model, exact or not: the mode does not depend on it.
        likelihood: The likelihood of the training data.
        tolerance: The search ends where the next step would move no output by more posterior standard deviations than
            this; by default, where it is rounding.

    Raises:
        NotConvergedError: If the loss of a custom likelihood is not convex, or has no minimum.
    """
    search = _Search.start(posterior, likelihood)
    tolerance = _TOLERANCE if tolerance is None else tolerance
    with bar("mode of the linearised network", _STEPS) as advance:
        for _ in range(_STEPS):
            search.step()
            advance(f"step size {search.decrement:.1g}")
            if search.decrement <= tolerance or search.stalled:
                return search.model()
    raise NotConvergedError(
        f"The mode of the linearised network was not found in {_STEPS} Newton steps (the next one would move an output "
        f"by {search.decrement:.1g} posterior standard deviations). Use mean=NetworkOutput(), or a larger prior "
        "precision δ."
    )


@final
@dataclass(eq=False)
class _Search:
    """The state of the search, in float64."""

    likelihood: Likelihood
    posterior: Posterior
    """Whose Σ̃ preconditions the conjugate gradients."""
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
    stalled: bool = False
    """Whether the loss no longer decreases because of rounding."""

    @staticmethod
    def start(posterior: Posterior, likelihood: Likelihood) -> _Search:
        expansion = posterior.model.expansion
        if expansion.targets is None or expansion.features.num_outputs != expansion.residual.shape[1]:
            raise InputError(
                "mean: the mode of the linearised network needs Gauss-Newton features and the targets of the training "
                "data. Use mean=NetworkOutput()."
            )
        features, inputs = expansion.features, expansion.inputs
        reserve = sum(tensor.nbytes for tensor in posterior.state().values())
        jacobian = FactoredJacobian(features, inputs, dtype=torch.float64, reserve=reserve)
        zero = torch.zeros_like(expansion.anchor, dtype=torch.float64)
        moved = zero if expansion.moved is None else expansion.moved
        targets = expansion.targets
        targets = targets.double() if targets.is_floating_point() else targets
        search = _Search(likelihood, posterior, jacobian, expansion, targets, moved, features.outputs(inputs).double())
        if expansion.moved is not None:
            search.outputs += search.push(moved)
        return search

    def push(self, weights: Float[Tensor, " P"]) -> Float[Tensor, "N K"]:
        """J t."""
        return self.jacobian.push(weights[:, None]).reshape(self.jacobian.num_examples, -1)

    def pull(self, sites: Float[Tensor, "N K"]) -> Float[Tensor, " P"]:
        """Jᵀ u."""
        return self.jacobian.pull(sites.reshape(-1, 1))[:, 0]

    def prior(self, weights: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        """V⁻¹ v."""
        return self.posterior.model.prior.precision.matmul(weights[:, None].double())[:, 0].double()

    def step(self) -> None:
        """One damped Newton step."""
        residual = self.likelihood.residual(self.outputs, self.targets)
        root = self.likelihood.noise_precision_root(self.outputs, self.targets)
        centre = self.posterior.model.prior.mean.double()
        gap = self.expansion.features.anchor.double() + self.moved - centre
        gradient = self.pull(residual) + self.prior(gap)

        def curvature(vector: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
            pushed = root @ (root.mT @ self.push(vector).unsqueeze(-1))
            return self.prior(vector) + self.pull(pushed.squeeze(-1))

        direction, iterations = conjugate_gradients(curvature, -gradient, self._precondition, self._accuracy())
        self.decrement = max(0.0, -(gradient @ direction).item()) ** 0.5
        self._move(direction, gradient, gap)
        self._refactor(iterations)

    def _accuracy(self) -> float:
        """How accurately to solve for the step: more and more, so that the convergence stays quadratic."""
        return max(1e-9, min(0.1, self.decrement))

    def _precondition(self, vector: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return self.posterior.covariance_matmul(vector[:, None])[:, 0]

    def _move(self, direction: Float[Tensor, " P"], gradient: Float[Tensor, " P"], gap: Float[Tensor, " P"]) -> None:
        """Go along the direction: the whole step, a half, a quarter, … until the loss decreases enough."""
        pushed, bent, slope = self.push(direction), self.prior(direction), (gradient @ direction).item()
        linear, square = (gap @ bent).item(), (direction @ bent).item()
        now, size = self._loss(self.outputs), 1.0
        rounding = 1e-13 * (abs(now) + abs((gap @ self.prior(gap)).item()))
        for _ in range(_HALVINGS):
            change = self._loss(self.outputs + size * pushed) - now + size * linear + 0.5 * size**2 * square
            if change <= _ARMIJO * size * slope + rounding:
                self.moved, self.outputs = self.moved + size * direction, self.outputs + size * pushed
                return
            size /= 2
        self.stalled = True

    def _loss(self, outputs: Float[Tensor, "N K"]) -> float:
        return self.likelihood.loss(outputs, self.targets).sum().item()

    def _refactor(self, iterations: int) -> None:
        """A posterior at the present point, once the iterations have cost as much as its factorisation."""
        expansion = self.expansion
        M, P = expansion.num_sites, expansion.features.num_weights
        cost = self.posterior.method.cost(M, P)
        self.spent += iterations * (4.0 * M * P + 4.0 * cost.size**2)
        if self.spent > cost.operations and self.decrement > _TOLERANCE:
            self.posterior, self.spent = self.posterior.method.infer(self.model()), 0.0

    def model(self) -> LinearModel:
        """The linear model with the sites at the present point, around which it predicts."""
        expansion = self.expansion.relinearised(self.likelihood, self.outputs, self.moved)
        return replace(self.posterior.model, expansion=expansion, centre=self.moved)


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
