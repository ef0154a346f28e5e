"""Step A while training: one update of the online-Newton family, Eqs. (11) and (12), as pure functions.

With q_t = N(μ_t, Σ_t), S samples w_s ~ q_t (or w = μ_t alone), M of N examples, rates β and β', temperature T:

    ĝ        = (N / M T) (1/S) Σ_s Σᵢ ∇ℓᵢ(w_s) + δ μ_t                      Ĥ = (N / M T) (1/S) Σ_s Σᵢ ∇²ℓᵢ(w_s)
    Σ_{t+1}⁻¹ = (1 − β') Σ_t⁻¹ + β' (Ĥ + δI)                                   (its diagonal, for a diagonal structure)
    μ_{t+1}   = μ_t − β Σ_{t+1} m / c,   m = γ m + (1 − γ) ĝ,   c = γ c + 1 − γ             (m / c = ĝ without momentum)

A step is `begin` (draw the samples), `add` for each of its batches, and `finish`; `update` does all three. Theorem 2 is
about β' = β and γ = 0. Everything is a frozen value; the torch optimizers of `dnn2gp.optim` are a shell around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features import NetworkFeatures
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.data import Data
from dnn2gp.network.inputs import concatenate
from dnn2gp.support.errors import DivergedError, InputError, NotPositiveDefiniteError
from dnn2gp.support.memory import require
from dnn2gp.support.numbers import positive_number
from dnn2gp.support.processes import ALONE, Team
from dnn2gp.support.randomness import own_generator
from dnn2gp.weights.curvature import Curvature, Evaluation
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.structures import Dense, DensePrecision, Diagonal, DiagonalPrecision


def check_rate(name: str, value: float | None) -> float:
    """β ∈ (0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise InputError(
            f"{name}: expected a learning rate in (0, 1], the weight of the new curvature and gradient; got "
            f"{value!r}. It is the β of Eqs. (11) and (12) for the summed loss, which is not comparable with Adam's "
            "learning rate: try 0.1."
        )
    return value


def check_positive(name: str, value: float) -> float:
    """A finite number > 0."""
    positive_number(name, value)
    return value


def check_step_settings(num_data: int, num_samples: int, momentum: float, temperature: float, antithetic: bool) -> None:
    """Raise `InputError` for the first setting that is out of range."""
    if isinstance(num_data, bool) or not isinstance(num_data, int) or num_data < 1:
        raise InputError(f"num_data: expected N ≥ 1, the total number of training examples; got {num_data!r}.")
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 0:
        raise InputError(f"num_samples: expected an integer ≥ 0, where 0 evaluates at the mean; got {num_samples!r}.")
    if isinstance(momentum, bool) or not isinstance(momentum, int | float) or not 0 <= momentum < 1:
        raise InputError(f"momentum: expected a number in [0, 1); got {momentum!r}.")
    check_positive("temperature", temperature)
    if antithetic and num_samples % 2:
        raise InputError(
            f"num_samples: expected an even number, because antithetic samples come in pairs; got {num_samples}."
        )


@dataclass(frozen=True, eq=False)
class State:
    """q_t = N(μ_t, Σ_t), the momentum m of its mean with its weight c, and t."""

    mean: Float[Tensor, " P"]
    precision: DensePrecision | DiagonalPrecision
    momentum: Float[Tensor, " P"]
    momentum_weight: float = 0.0
    """c: the sum of the weights of past gradients in m, 1 − γᵗ for a constant γ."""
    step: int = 0

    def posterior(self) -> Gaussian:
        """q_t."""
        return Gaussian(self.mean, self.precision)


@dataclass(frozen=True, eq=False)
class BegunStep:
    """A step from q_t that has begun: its samples, and the sums over the batches added so far."""

    state: State
    samples: Float[Tensor, "S P"]
    batches: tuple[Data, ...] = ()
    evaluation: Evaluation | None = None
    """Over all batches, averaged over the samples; None before the first batch."""
    last_loss: float = 0.0
    """The mean loss of the batch that was added last."""


@dataclass(frozen=True, eq=False)
class OnlineNewton:
    """A method of the family, for one network, likelihood, prior and number of examples.

    num_samples  S samples of q_t at which gradient and curvature are evaluated; 0: at the mean (ON, OGGN, OGN)
    """

    features: NetworkFeatures
    likelihood: Likelihood
    num_data: int
    prior_precision: Float[Tensor, " P"]
    curvature: Curvature
    structure: Dense | Diagonal
    num_samples: int = 1
    momentum: float = 0.0
    temperature: float = 1.0
    antithetic: bool = False
    team: Team = ALONE
    """The processes that share each batch; `features` sums over the examples of this one only."""

    def __post_init__(self) -> None:
        check_step_settings(self.num_data, self.num_samples, self.momentum, self.temperature, self.antithetic)
        if not isinstance(self.curvature, Curvature):
            raise InputError(f"curvature: expected a value such as GaussNewton(); got {self.curvature!r}.")
        if self.structure not in (Dense(), Diagonal()):
            raise InputError(f"structure: expected Dense() or Diagonal(); got {self.structure!r}.")
        if self.prior_precision.shape != self.features.anchor.shape or not (self.prior_precision > 0).all():
            raise InputError(
                f"prior_precision: expected {self.features.num_weights} numbers > 0, one per weight; got a tensor of "
                f"shape {tuple(self.prior_precision.shape)} with a minimum of {self.prior_precision.min():.3g}."
            )

    def init(self, mean: Float[Tensor, " P"], initial_precision: float) -> State:
        """q_0 = N(mean, initial_precision⁻¹ I)."""
        precision = first_precision(self.structure, mean, initial_precision, self.features.budget())
        return State(mean, precision, torch.zeros_like(mean))

    def update(
        self,
        state: State,
        batch: Data | Sequence[Data],
        beta: float,
        precision_beta: float | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[State, StepInfo]:
        """One whole step; several batches count as one. `precision_beta` is β', by default β."""
        check_rate("beta", beta)
        batches = [batch] if isinstance(batch, Data) else list(batch)
        if not batches:
            raise InputError("batch: expected at least one batch; got an empty list.")
        step = self.begin(state, generator)
        for each in batches:
            step = self.add(step, each)
        return self.finish(step, beta, precision_beta)

    def begin(self, state: State, generator: torch.Generator | None = None) -> BegunStep:
        """Draw the samples of a step from q_t."""
        if state.precision.structure != self.structure:
            raise InputError(
                f"state: expected a {self.structure.name} precision for this method; got a "
                f"{state.precision.structure.name} one. Start from init."
            )
        return BegunStep(state, self.sample(state, generator))

    def add(self, step: BegunStep, batch: Data) -> BegunStep:
        """Evaluate loss, gradient and curvature of one more batch, averaged over the samples of the step."""
        self.check_count(batch.num_examples + sum(each.num_examples for each in step.batches))
        found = Evaluation.mean(
            [
                self.curvature.evaluate(self.features.at(w), batch, self.likelihood, dense=self.structure == Dense())
                for w in step.samples
            ]
        ).over(self.team)
        self.check_count(found.count + (0 if step.evaluation is None else step.evaluation.count))
        if not all(value.isfinite().all() for value in (found.loss, found.gradient, found.curvature)):
            raise self._diverged(step, batch)
        return replace(
            step,
            batches=(*step.batches, batch),
            evaluation=found if step.evaluation is None else step.evaluation.plus(found),
            last_loss=found.loss.item() / found.count,
        )

    def finish(
        self,
        step: BegunStep,
        beta: float,
        precision_beta: float | None = None,
        gradient: Float[Tensor, " P"] | None = None,
    ) -> tuple[State, StepInfo]:
        """Σ_{t+1} and μ_{t+1} from the batches of the step; β = 0 keeps the mean.

        `gradient` replaces ĝ, e.g. by a clipped one.
        """
        state, evaluation = step.state, _evaluated(step)
        gradient = self.gradient(step) if gradient is None else gradient
        rate = beta if precision_beta is None else check_rate("precision_beta", precision_beta)
        try:
            precision = self._moved(state.precision, self.scale(evaluation.count) * evaluation.curvature, rate)
            momentum = torch.lerp(gradient, state.momentum.double(), self.momentum)
            weight = self.momentum * state.momentum_weight + 1 - self.momentum
            move = precision.solve(momentum[:, None] / weight)[:, 0]
        except NotPositiveDefiniteError as error:
            raise NotPositiveDefiniteError(
                f"Step {state.step + 1}: {error} The curvature is the {self.curvature.name} of this batch. Lower "
                "precision_lr, raise the prior precision or the initial precision, or use a method whose curvature "
                "is never negative (VOGGN, OGGN, VOGN, OGN). The state before this step is intact."
            ) from error
        mean = (state.mean.double() - beta * move).to(state.mean.dtype)
        if not mean.isfinite().all():
            raise DivergedError(
                f"Step {state.step + 1} would make weights NaN or infinite. The state before this step is intact. "
                "Lower lr or precision_lr, or raise the initial precision or the prior precision."
            )
        after = State(mean, precision, momentum.to(state.mean.dtype), weight, state.step + 1)
        return after, StepInfo(self, state.step, step.samples, step.batches, beta, evaluation, gradient)

    def gradient(self, step: BegunStep) -> Float[Tensor, " P"]:
        """ĝ of the batches added so far, in float64."""
        evaluation = _evaluated(step)
        penalty = self.prior_precision.double() * step.state.mean.double()
        return self.scale(evaluation.count) * evaluation.gradient + penalty

    def sample(self, state: State, generator: torch.Generator | None = None) -> Float[Tensor, "S P"]:
        """w_s = μ_t + Σ_t^{½} ε_s, in pairs ± ε if antithetic; μ_t itself for a method at the mean."""
        mean, count = state.mean, self.num_samples
        if count == 0:
            return mean.unsqueeze(0)
        draws = count // 2 if self.antithetic else count
        generator = own_generator(generator, mean.device)
        noise = torch.randn(len(mean), draws, generator=generator, dtype=mean.dtype, device=mean.device)
        moves = state.precision.unwhiten(noise).T.to(mean.dtype)
        return (mean + (torch.cat([moves, -moves]) if self.antithetic else moves)).contiguous()

    def look(self, state: State, batch: Data, beta: float, generator: torch.Generator | None = None) -> Sites:
        """What a step from q_t would see on these examples, without taking the step."""
        return Sites(self, state.step, self.sample(state, generator), (batch,), check_rate("beta", beta))

    def scale(self, count: int) -> float:
        """N / (M T): the factor of the sums over a batch of M examples."""
        return self.num_data / (count * self.temperature)

    def check_count(self, count: int) -> None:
        """M ≤ N, for all batches of a step together."""
        if count > self.num_data:
            raise InputError(
                f"num_data: expected N, the total number of training examples; got {self.num_data}, but a step sees "
                f"{count}. Sums over a step are scaled by N / M, so pass the true N."
            )

    def prior(self, state: State, beta: float) -> Gaussian:
        """N(m_t, V_t) of Theorem 2: V_t⁻¹ = (1−β) Σ_t⁻¹ + β δI, m_t = (1−β) V_t Σ_t⁻¹ μ_t, so that p^β q_t^{1−β} ∝ it.

        m_t is computed as μ_t − β V_t δ μ_t, which is the same and loses no digits for small β.
        """
        check_rate("beta", beta)
        precision = self._moved(state.precision, 0.0, beta)
        pull = (self.prior_precision.double() * state.mean.double())[:, None]
        mean = state.mean.double() - beta * precision.solve(pull)[:, 0]
        return Gaussian(mean.to(state.mean.dtype), precision)

    def _moved(
        self, precision: DensePrecision | DiagonalPrecision, curvature: Tensor | float, beta: float
    ) -> DensePrecision | DiagonalPrecision:
        """(1 − β) Σ⁻¹ + β (H + δI)."""
        delta = self.prior_precision.double()
        if isinstance(precision, DiagonalPrecision):
            values = (1 - beta) * precision.values.double() + beta * (curvature + delta)
            return DiagonalPrecision(values.to(precision.values.dtype))
        matrix = (1 - beta) * precision.matrix
        matrix.diagonal().add_(beta * delta)
        return DensePrecision(matrix + beta * curvature)

    def _diverged(self, step: BegunStep, batch: Data) -> DivergedError:
        """An error that names the step, the batch and the example."""
        losses = [self.likelihood.loss(self.features.at(w).outputs(batch.inputs), batch.targets) for w in step.samples]
        bad = (~torch.stack(losses).isfinite().all(0)).nonzero().flatten().tolist()
        what = f"the loss of example {bad[0]} of it" if bad else "its gradient or curvature"
        return DivergedError(
            f"Step {step.state.step + 1}, batch {len(step.batches) + 1} of the step ({batch.num_examples} examples): "
            f"{what} is NaN or infinite. The state before this step is intact and can be saved. Check the batch, "
            "lower lr or precision_lr, or raise the initial precision or the prior precision, which makes steps "
            "smaller and keeps samples closer to the mean."
        )


@dataclass(frozen=True, eq=False)
class Sites:
    """What Theorem 2 needs to know about a step from q_t: the samples of q_t, the examples, and β."""

    method: OnlineNewton
    step: int
    """t of q_t."""
    samples: Float[Tensor, "S P"]
    batches: tuple[Data, ...]
    beta: float

    @cached_property
    def expansion(self) -> Expansion:
        """Eq. (5) at each of the samples, stacked, for the examples of the step; not yet scaled by β."""
        return self.expanded(Expansion.gauss_newton)

    def expanded(self, kind: Callable[..., Expansion]) -> Expansion:
        """The same by another constructor of `Expansion`: `Expansion.empirical_fisher` is what VOGN itself sees."""
        method, batch = self.method, _joined(self.batches)
        each = [
            kind(method.features.at(weights), batch.inputs, batch.targets, method.likelihood)
            for weights in self.samples
        ]
        return Expansion.stacked(each).weighted(method.scale(batch.num_examples) / len(each))


@dataclass(frozen=True, eq=False)
class StepInfo(Sites):
    """What a finished step saw."""

    evaluation: Evaluation
    gradient: Float[Tensor, " P"]
    """ĝ, as the step used it."""

    @property
    def loss(self) -> float:
        """The mean loss (1/M) Σ ℓᵢ of the examples, averaged over the samples."""
        return self.evaluation.loss.item() / self.evaluation.count

    @property
    def log_likelihood(self) -> float:
        """An estimate of E_q log p(D | w) for all N examples."""
        return self.evaluation.log_likelihood.item() * self.method.num_data / self.evaluation.count


def first_precision(
    structure: Dense | Diagonal, mean: Float[Tensor, " P"], value: float, budget: int
) -> DensePrecision | DiagonalPrecision:
    """value · I, provided that the matrices of a step fit into memory."""
    values = torch.full_like(mean, check_positive("initial_precision", value))
    if structure == Diagonal():
        return DiagonalPrecision(values)
    size = len(mean)
    instead = "For larger networks, use VOGN or OGN (diagonal), or freeze layers (requires_grad_(False))."
    require(_MATRICES * 8 * size**2, budget, f"A dense precision of {size} weights", instead)
    return DensePrecision(torch.diag(values.double()))


_MATRICES = 5  # the precision before and after the step, its Cholesky factor, the curvature, and a summand


def _evaluated(step: BegunStep) -> Evaluation:
    if step.evaluation is None:
        raise InputError("step: expected a step with at least one batch; got none. Call add(step, batch) first.")
    return step.evaluation


def _joined(batches: Sequence[Data]) -> Data:
    if len(batches) == 1:
        return batches[0]
    return Data(concatenate([batch.inputs for batch in batches]), torch.cat([batch.targets for batch in batches]))
