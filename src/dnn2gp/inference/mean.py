"""Which function a GP predicts around: the network itself, the mode of the linearised network, or one step towards it.

A network that is not at a minimum of its loss (after Adam, mini-batches and early stopping, none is) does not agree
with the mean of its linear model. At a minimum, the three means are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from dnn2gp.support.choice import Choice


class Mean(Choice):
    """The mean of f in predictions: `NetworkOutput()`, `LinearisedMode()` or `GaussNewtonStep()`."""

    kinds: ClassVar[dict[str, type[Mean]]] = {}


@final
@dataclass(frozen=True)
class NetworkOutput(Mean):
    """f_w(x): the GP adds variances and leaves the predictions of the network as they are."""

    name = "network output"

    sites_at_mode: bool = False
    """Whether r and Λ, and with them the covariance, are those at the mode of the linearised network.

    There, leave-one-out is valid, and examples of which an overfit network is certain (Λ = 0) still count.
    """


@final
@dataclass(frozen=True)
class LinearisedMode(Mean):
    """f_w(x) + J(x)(θ − w), with θ the minimum of the loss of the linearised network:

    θ = argmin Σᵢ ℓ(yᵢ, f_w(xᵢ) + J(xᵢ)(θ − w)) + ½ (θ − m)ᵀ V⁻¹ (θ − m).

    The loss is convex for every likelihood of the package. Theorem 1 holds exactly at θ, with J fixed. For a Gaussian
    likelihood, θ is one Gauss-Newton step away from w.
    """

    name = "linearised mode"


@final
@dataclass(frozen=True)
class GaussNewtonStep(Mean):
    """f_w(x) + J(x)(μ − w), with μ = w − Σ̃ ∇ℓ̄(w): the posterior mean of the linear model, Theorem 1 as printed.

    Far from a minimum, and unless the likelihood is Gaussian, one such step may make predictions much worse.
    """

    name = "Gauss-Newton step"
