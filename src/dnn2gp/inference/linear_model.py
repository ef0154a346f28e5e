"""Step B: the linear model on transformed data whose posterior is the Gaussian of step A, Eq. (8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import FactoredJacobian
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.errors import InputError
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.online_newton import Sites, State


@dataclass(frozen=True, eq=False)
class TransformedData:
    """D̃ = {(xᵢ, ỹᵢ)} in the natural form of Eq. (22): the precision Λᵢ of each site and Λᵢ ỹᵢ = Λᵢ Jᵢ w − rᵢ.

    Λ may be singular (softmax has rank K−1), so ỹ itself is provided only for inspection.
    """

    inputs: Inputs
    noise_precision: Float[Tensor, "N Q Q"]
    weighted_outputs: Float[Tensor, "N Q"]

    @property
    def outputs(self) -> Float[Tensor, "N Q"]:
        """ỹ = Λ⁺ (Λ J w − r): the transformed outputs on the range of Λ."""
        inverse = torch.linalg.pinv(self.noise_precision, hermitian=True)
        return (inverse @ self.weighted_outputs.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True, eq=False)
class LinearModel:
    """ỹ = φ(x)ᵀ w + ε,  ε ~ N(0, D⁻¹),  w ~ N(m, V): Eq. (8) where (m, V) = (0, δ⁻¹I), else Eq. (13)."""

    expansion: Expansion
    prior: Gaussian
    of_step: bool = False
    """Whether it is that of a training step (Theorem 2) rather than of a minimum."""
    centre: Float[Tensor, " P"] | None = None
    """c in float64, if predictions are centred at f_w(x) + J(x)c and the weights at w + c (`NetworkOutput` and
    `LinearisedMode`); None if they are centred at the posterior mean, one Gauss-Newton step from the anchor."""

    def __post_init__(self) -> None:
        """Check that the prior and the features have the same weights."""
        if self.prior.precision.size != self.expansion.features.num_weights:
            raise InputError(
                f"prior: expected as many weights as the features have, {self.expansion.features.num_weights}; got "
                f"{self.prior.precision.size}."
            )

    @staticmethod
    def from_laplace(expansion: Expansion, prior: Gaussian) -> LinearModel:
        """Theorem 1: at a minimum the posterior of this model is the Laplace-GGN approximation."""
        return LinearModel(expansion, prior)

    @staticmethod
    def from_step(
        state: State,
        info: Sites,
        beta: float | None = None,
        expansion: Callable[..., Expansion] = Expansion.gauss_newton,
    ) -> LinearModel:
        """Theorem 2: the linear model whose posterior is the Gaussian after a step of VOGGN or OGGN from q_t.

        ỹ = J_t(x) w + ε,  ε ~ N(0, S (β Λ_t)⁻¹),  w ~ N(m_t, V_t),  with the features of S samples of q_t stacked and
        ỹ = J_t μ_t − Λ_t⁻¹ r_t: anchored at the mean μ_t, not at the sample as in the main text.

        `state` is q_t before the step, and `info` is what the step returned; `beta` is its β unless another is given.
        After a step with a diagonal structure, with momentum or with two rates, this is the model of the plain, dense
        step from the same q_t. `expansion`: Gauss-Newton, as in the paper, or `Expansion.empirical_fisher`.
        """
        if not isinstance(state, State) or not isinstance(info, Sites):
            raise InputError(
                "from_step: expected a State (optimizer.snapshot()) and the info that step() returned; got "
                f"{type(state).__name__} and {type(info).__name__}."
            )
        if state.step != info.step:
            raise InputError(
                f"state: expected q_t as it was before the step (step {info.step}); got that of step {state.step}. "
                "Take the snapshot first: state = optimizer.snapshot(); info = optimizer.step(inputs, targets)."
            )
        rate = info.beta if beta is None else beta
        prior = info.method.prior(state, rate)
        sites = info.expansion if expansion is Expansion.gauss_newton else info.expanded(expansion)
        return LinearModel(sites.weighted(rate).anchored(state.mean), prior, of_step=True)

    @cached_property
    def transformed_data(self) -> TransformedData:
        """D̃, anchored at w."""
        expansion = self.expansion
        linear = expansion.features.jvp(expansion.inputs, expansion.anchor[:, None])
        precision = expansion.noise_precision()
        return TransformedData(expansion.inputs, precision, (precision @ linear).squeeze(-1) - expansion.residual)

    def relative_gradient(self) -> float:
        """‖∇ℓ̄‖ / (‖Σᵢ φᵢvᵢ‖ + ‖V⁻¹(w−m)‖): 0 at a minimum, up to 1 elsewhere."""
        gap = (self.expansion.anchor.double() - self.prior.mean.double())[:, None]
        penalty = self.prior.precision.matmul(gap)[:, 0]
        parts = (self.gradient - penalty).norm() + penalty.norm()
        return (self.gradient.norm() / parts).item() if parts > 0 else 0.0

    @cached_property
    def gradient(self) -> Float[Tensor, " P"]:
        """∇ℓ̄(w) = Σᵢ φᵢ vᵢ + V⁻¹ (w − m), in float64."""
        gap = (self.expansion.anchor.double() - self.prior.mean.double())[:, None]
        return self.expansion.gradient().double() + self.prior.precision.matmul(gap)[:, 0]

    def white_gap(self) -> Float[Tensor, " P"]:
        """z₀ = V^{−½} (w − m), in float64, with the V^{½} of `whiten`."""
        precision = self.prior.precision.double()
        gap = (self.expansion.anchor.double() - self.prior.mean.double())[:, None]
        return precision.whiten(precision.matmul(gap).T)[0]

    def white_outputs(self, sites: FactoredJacobian) -> Float[Tensor, " M"]:
        """Sᵀ(ỹ − Jm) = Φz₀ − S⁻¹r, the transformed outputs in units of the noise, for a Gaussian likelihood."""
        return sites.push(self.white_gap()[:, None])[:, 0] - self.expansion.white_residual()

    def white_residual(self, step: Float[Tensor, " P"]) -> Float[Tensor, " M"]:
        """S⁻¹r − SᵀJ s: the residual after a step s from w, in units of the noise, for a Gaussian likelihood."""
        expansion = self.expansion
        moved = expansion.features.jvp(expansion.inputs, step.to(expansion.anchor.dtype)[:, None]).double()
        return expansion.white_residual() - (expansion.root.double().mT @ moved).flatten()

    def misfit(self, step: Float[Tensor, " P"]) -> float:
        """‖S⁻¹r − SᵀJ s‖² + ‖w − s − m‖² in units of noise and prior, for a Gaussian likelihood and a step s from w."""
        distance = self.prior.squared_distance(self.expansion.anchor.double() - step)
        return self.expansion.team.total(self.white_residual(step).square().sum().item()) + distance.item()

    def white_anchor(self) -> Float[Tensor, " P"]:
        """V^{−½} w for a diagonal V, in float64, so that Φ V^{−½} w = SᵀJ w."""
        return self.prior.precision.double().diagonal().sqrt() * self.expansion.anchor.double()
