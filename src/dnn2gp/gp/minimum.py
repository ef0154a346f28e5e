"""What counts as a minimum of the loss: all thresholds are in this file.

Two numbers measure how far weights w are from a minimum, with g = ∇ℓ̄(w):

    relative gradient   ‖g‖ / (norm of the data's part + norm of the prior's part), between 0 and 1
    step bound          √(gᵀ Σ̃ g): the Gauss-Newton step to the minimum moves no output by more posterior standard
                        deviations than this
"""

from __future__ import annotations

SMALL_GRADIENT = 0.05
"""Weights with at most this relative gradient are at a minimum."""

SMALL_STEP = 0.5
"""A step that moves no output by more posterior standard deviations than this does not matter."""

LARGE_STEP = 2.0
"""A step that moves outputs by more posterior standard deviations than this leads to another function."""


def at_minimum(relative_gradient: float, step_bound: float, *, exact: bool = True) -> bool:
    """Whether weights are at a minimum: the gradient is small, or the step to the minimum does not matter.

    An approximate posterior takes no step, so only its gradient counts (`exact=False`).
    """
    return relative_gradient <= SMALL_GRADIENT or (exact and step_matters_little(step_bound))


def step_matters_little(step: float) -> bool:
    """Whether outputs move by a negligible number of posterior standard deviations."""
    return step <= SMALL_STEP
