"""The torch optimizer around the pure online-Newton update.

The loop is `optimizer.step(inputs, targets)`; network and likelihood are given once. After every step the network's
weights are the mean of q_t, so that `network(x)` is the network at the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.gp.convert import convert_step
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.network_samples import SampledPredictive, networks_at
from dnn2gp.gp.shared import own_share, team_of
from dnn2gp.inference import Inference
from dnn2gp.inference.kernel import Kernel
from dnn2gp.inference.predictive import Predictive
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.data import Data, read_data
from dnn2gp.network.inputs import Inputs, check_inputs
from dnn2gp.optim.checkpoints import packed, precision_values, unpacked
from dnn2gp.optim.schedule import MOMENTUM, Schedule, chosen_schedule, peak_rate
from dnn2gp.optim.trained_network import TrainedNetwork
from dnn2gp.optim.variational_evidence import VariationalEvidence, expected_log_likelihood, linear_model_evidences
from dnn2gp.support.errors import InputError, ScheduleWarning, warn_user
from dnn2gp.support.memory import check_budget, default_budget
from dnn2gp.support.numbers import seed_number, whole_number
from dnn2gp.support.processes import Processes
from dnn2gp.weights.curvature import Curvature, ExactHessian
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.online_newton import (
    BegunStep,
    OnlineNewton,
    State,
    StepInfo,
    check_rate,
    check_step_settings,
    first_precision,
)
from dnn2gp.weights.priors import PriorPrecision, expand_precision
from dnn2gp.weights.structures import Dense, Diagonal

_KEY = "online_newton"
# The largest rate of a precision whose curvature may be negative, so that the first precision outweighs it for a while.
_INDEFINITE = 0.1


@dataclass(frozen=True, eq=False)
class _Pending:
    """A step that `backward` has begun."""

    method: OnlineNewton
    step: BegunStep
    generator_before: Tensor
    """The generator's state before the samples were drawn."""
    written: tuple[Tensor, ...] = ()
    """The gradients that were written into the `grad` of the weights."""


class OnlineNewtonOptimizer(torch.optim.Optimizer):
    """The abstract base of all methods.

    Without `lr`, a schedule sets β_t, the fraction of a full Newton step on the *summed* loss, and the rate β'_t of the
    precision. With `lr`, the defaults are those of Theorem 2: β' = β, no momentum, and Σ_0⁻¹ = N.

    network            the module to train; its weights with requires_grad get a posterior
    likelihood         the loss, e.g. CategoricalLikelihood()
    num_data           N, the total number of training examples, which every batch represents
    steps              how many steps training will take, short for schedule=Cosine(steps); None: OpenEnded()
    schedule           how the rates depend on the step (see `schedule.py`)
    lr                 β_t of the mean, in (0, 1], instead of a schedule; torch's schedulers may change it
    precision_lr       β', the rate of the precision; None: by the schedule, or the same as lr, as in Theorem 2
    prior_precision    δ of the prior N(0, δ⁻¹ I): a number, one per layer, or one per weight
    num_samples        S samples of q_t per step; 0 for the methods at the mean
    initial_precision  Σ_0⁻¹ = initial_precision · I; None: N / T, or N with lr
    momentum           γ of a bias-corrected average of past gradients; None: 0.9, or 0 with lr
    temperature        T of a posterior ∝ p(D|w)^{1/T} p(w)
    antithetic         draw samples in pairs μ ± ε
    seed               of the samples, which come from a generator of their own; `state_dict` includes its state
    memory_budget      bytes; by default half of the free memory
    processes          Processes() if several processes share each batch; weights, samples and q_t are the same in all
    """

    curvature: ClassVar[Curvature]
    structure: ClassVar[Dense | Diagonal]
    at_mean: ClassVar[bool]

    @torch.inference_mode(False)
    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        num_data: int,
        *,
        steps: int | None = None,
        schedule: Schedule | None = None,
        lr: float | None = None,
        precision_lr: float | None = None,
        prior_precision: PriorPrecision = 1.0,
        num_samples: int | None = None,
        initial_precision: float | None = None,
        momentum: float | None = None,
        temperature: float = 1.0,
        antithetic: bool = False,
        seed: int = 0,
        memory_budget: int | float | None = None,
        processes: Processes | None = None,
    ) -> None:
        if not isinstance(likelihood, Likelihood) or likelihood.per_example:
            raise InputError(
                "likelihood: expected a dnn2gp likelihood with the same noise for all examples, e.g. "
                f"CategoricalLikelihood() or GaussianLikelihood(0.1); got {likelihood!r}."
            )
        samples = self._checked_samples(num_samples)
        self.schedule = chosen_schedule(steps, schedule, lr)
        if momentum is None:
            momentum = 0.0 if self.schedule is None else MOMENTUM
        check_step_settings(num_data, samples, momentum, temperature, antithetic)
        rate = check_rate("lr", lr) if self.schedule is None else self._scheduled(self.schedule, 0, 1.0)
        if precision_lr is not None:
            check_rate("precision_lr", precision_lr)
        seed = seed_number("seed", seed)
        trained = TrainedNetwork(network, likelihood.detached(), check_budget(memory_budget))
        defaults = {"lr": rate, "precision_lr": precision_lr, "momentum": momentum}
        super().__init__(list(trained.named.values()), defaults)
        self.network, self.likelihood, self.num_data = network, trained.likelihood, num_data
        self.num_samples, self.temperature, self.antithetic = samples, temperature, antithetic
        mean = trained.mean()
        self.prior_precision = expand_precision(prior_precision, trained.layout, mean)
        self.generator = torch.Generator(device=mean.device).manual_seed(seed)
        budget = default_budget() if trained.memory_budget is None else trained.memory_budget
        usual = num_data / (1.0 if self.schedule is None else temperature)
        first = float(usual) if initial_precision is None else initial_precision
        self._trained, self._last_lr = trained, rate
        self._state = State(mean, first_precision(self.structure, mean, first, budget), torch.zeros_like(mean))
        """q_t except for its mean, which the network holds."""
        self._pending: _Pending | None = None
        self._team = team_of(processes)
        settings = type(self), num_data, samples, antithetic, seed, self.schedule, defaults, temperature, first
        same = {"network": trained.named, "prior_precision": self.prior_precision, "settings": settings}
        self._team.agree(same)

    def snapshot(self) -> State:
        """q_t, its momentum and t, as a copy that further training leaves unchanged."""
        own = self._current()
        precision = type(own.precision)(precision_values(own).clone())
        return replace(own, precision=precision, momentum=own.momentum.clone())

    def posterior(self) -> Gaussian:
        """q_t = N(μ_t, Σ_t)."""
        return self.snapshot().posterior()

    @torch.inference_mode(False)
    def backward(self, inputs: Inputs, targets: Tensor) -> float:
        """Evaluate a batch at the samples of this step, write ĝ T/N into the weights' `grad`, return the mean loss.

        Several calls before `step` add up: their batches count as one. Clip gradients after the last call.
        """
        try:
            with self._team.together():
                return self._evaluate(inputs, targets)
        except BaseException:
            self._forget()
            raise

    @torch.inference_mode(False)
    def step(self, inputs: Inputs | None = None, targets: Tensor | None = None) -> StepInfo:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step on this batch; without a batch, on those that `backward` evaluated, with the current gradients."""
        if inputs is not None:
            if targets is None:
                raise InputError(
                    "step: expected inputs and targets; the targets are missing. Call step(inputs, targets)."
                )
            if self._pending is not None:
                raise InputError(
                    "step: a step has begun with backward(). Call step() without data to finish it, add this batch "
                    "with backward(inputs, targets) first, or discard the step with zero_grad()."
                )
            self.backward(inputs, targets)
        pending = self._pending
        if pending is None:
            raise InputError(
                "step: expected inputs and targets; got neither. Call step(inputs, targets), or backward(inputs, "
                "targets) before step()."
            )
        try:
            lr, precision_lr = self._rates(pending)
            after, info = pending.method.finish(pending.step, lr, precision_lr, self._modified_gradient(pending))
            self._trained.write(after.mean)
            self._state = after
            if self.schedule is not None:
                self.param_groups[0]["lr"] = self._last_lr = lr
        except BaseException:
            self._forget()
            raise
        self._pending = None
        self._trained.keep_statistics()
        return info

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the gradients, and the step that `backward` has begun."""
        self._forget()
        super().zero_grad(set_to_none)

    def kl(self) -> float:
        """KL(q_t ‖ p), p = N(0, δ⁻¹ I)."""
        return self.posterior().kl(Gaussian.prior(self.prior_precision)).item()

    def elbo(self, data: object, num_samples: int = 10, generator: torch.Generator | None = None) -> float:
        """(1/T) E_q log p(D | w) − KL(q ‖ p), with the expectation over `num_samples` networks.

        The log-likelihood of M < N examples is multiplied by N / M.
        """
        num_samples = whole_number("num_samples", num_samples)
        batch, method = self._batch(data), self._method()
        method.check_count(batch.num_examples)
        found = expected_log_likelihood(method, self._current(), batch, num_samples, generator)
        return method.scale(batch.num_examples) * found - self.kl()

    def evidence(
        self, data: object, num_samples: int = 10, generator: torch.Generator | None = None
    ) -> VariationalEvidence:
        """The evidence of the linear model of iteration t, the same with the plain prior, and the ELBO.

        The first two need a dense matrix over the weights or over the data, whichever is smaller.
        """
        num_samples = whole_number("num_samples", num_samples)
        batch, state = self._batch(data), self.snapshot()
        step, plain = linear_model_evidences(self._method(), state, batch, self._beta(), num_samples, generator)
        return VariationalEvidence(step, plain, self.elbo(data, num_samples, generator), num_samples)

    def sample_network(
        self, inputs: Inputs, num_samples: int = 30, generator: torch.Generator | None = None
    ) -> SampledPredictive:
        """The paper's DNN-VI: predictions of `num_samples` networks w ~ q_t, their mean and both kinds of variance."""
        num_samples = whole_number("num_samples", num_samples)
        network = self._trained.features(check_inputs(inputs)).network
        return networks_at(network, self.posterior().sample(num_samples, generator), inputs, self.likelihood)

    def predict(self, inputs: Inputs) -> Predictive:
        """The predictive distribution of q_t through the network linearised at the mean, f ~ N(f_μ(x), J Σ_t Jᵀ)."""
        features = self._trained.features(check_inputs(inputs))
        checked = features.network.check_inputs(check_inputs(inputs))
        outputs = features.outputs(checked).detach()
        return Predictive(
            likelihood=self.likelihood,
            output_shape=features.network.output_shape,
            outputs=outputs,
            shift=torch.zeros_like(outputs),
            latent_covariance=features.covariance(checked, self._state.precision).to(outputs.dtype),
        )

    def kernel(self, inputs: Inputs) -> Kernel:
        """J Σ_t Jᵀ at the mean, the prior kernel of Theorem 2 for β → 0; `inputs` are a few examples."""
        return Kernel(self._trained.features(check_inputs(inputs)), self.posterior().precision)

    def gaussian_process(
        self,
        data: object,
        *,
        beta: float | None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        inference: Inference | None = None,
    ) -> GaussianProcess:
        """The GP of iteration t (Theorem 2) on these examples, which represent all data; training is not affected.

        beta         by default the current lr, or the initial one where a schedule has reached 0
        num_samples  of q_t, by default as many as a step draws
        """
        batch, method, state = self._batch(data), self._method(), self.snapshot()
        if num_samples is not None:
            method = replace(method, num_samples=num_samples, antithetic=False)
        rate = self._beta() if beta is None else beta
        return convert_step(state, method.look(state, batch, rate, generator), inference=inference)

    def state_dict(self) -> dict[str, Any]:
        """The parameter groups, and the precision, momentum, step and generator; the network holds the mean."""
        if self._pending is not None:
            raise InputError("state_dict: a step has begun. Call step() or zero_grad() first.")
        own = packed(self._state, type(self).__name__, self.num_data, self.temperature, self.generator)
        return {**super().state_dict(), _KEY: own}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; load the network's weights too, with its own load_state_dict."""
        own: Any = state_dict.get(_KEY)
        loaded = unpacked(own, self._state, type(self).__name__, self.num_data, self.temperature)
        super().load_state_dict({name: value for name, value in state_dict.items() if name != _KEY})
        self.generator.set_state(own["generator"].cpu())
        self._state, self._pending, self._last_lr = loaded, None, float(self.param_groups[0]["lr"])
        self._trained.keep_statistics()

    def __getstate__(self) -> dict[str, Any]:
        """Raise an error: a copied or unpickled optimizer would train weights that do not belong to any network."""
        raise TypeError(
            f"A {type(self).__name__} cannot be copied or pickled. Copy the network, create an optimizer for the copy, "
            "and load the state of this one: copy.load_state_dict(optimizer.state_dict())."
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise an error for a second group, because q_t is one Gaussian over all weights."""
        if self.param_groups:
            raise InputError(
                "param_group: expected a single group, because q_t is one Gaussian over all weights. For different "
                "priors, pass one prior_precision per layer; to exclude layers, freeze them (requires_grad_(False))."
            )
        super().add_param_group(param_group)

    def _checked_samples(self, num_samples: int | None) -> int:
        samples = (0 if self.at_mean else 1) if num_samples is None else num_samples
        name = type(self).__name__
        if self.at_mean and samples != 0:
            raise InputError(f"num_samples: {name} is evaluated at the mean and draws no samples; got {num_samples}.")
        if not self.at_mean and samples == 0:
            raise InputError(
                f"num_samples: expected at least 1; got 0. {name[1:]} is the method that is evaluated at the mean."
            )
        return samples

    def _evaluate(self, inputs: Inputs, targets: Tensor) -> float:
        batch, _ = own_share(self._team, self._trained.batch(inputs, targets), self.likelihood)
        pending = self._pending
        if pending is not None and self._trained.touched(pending.written):
            raise InputError(
                "backward: the grad of the weights was modified after the last backward(), and this call would "
                "overwrite it. Clip after the last batch of a step. The step that had begun is discarded."
            )
        self._trained.refresh_statistics(batch.inputs, self._team)
        if pending is None:
            method, before = replace(self._method(), team=self._team), self.generator.get_state()
            pending = _Pending(method, method.begin(self._current(), self.generator), before)
            self._pending = pending  # before the batch is evaluated, so that a failure restores the generator
        step = pending.method.add(pending.step, batch)
        scaled = pending.method.gradient(step) * (self.temperature / self.num_data)
        written = self._trained.write_grads(scaled.to(step.state.mean.dtype))
        self._pending = replace(pending, step=step, written=written)
        return step.last_loss

    def _modified_gradient(self, pending: _Pending) -> Float[Tensor, " P"] | None:
        """N / T times the weights' `grad`, if the user modified it since `backward`."""
        if not self._trained.touched(pending.written):
            return None
        return self._trained.read_grads().double() * (self.num_data / self.temperature)

    def _rates(self, pending: _Pending) -> tuple[float, float | None]:
        """β and β' of this step; lr is 0 in the first step of a warm-up or at the end of one of torch's schedules."""
        group = self.param_groups[0]
        lr, precision_lr = float(group["lr"]), group["precision_lr"]
        if precision_lr is not None:
            check_rate("precision_lr", precision_lr)
        if self.schedule is None:
            return lr if lr == 0 else check_rate("lr", lr), precision_lr
        if lr != self._last_lr:
            raise InputError(
                f"lr: it was changed from {self._last_lr:.3g} to {lr:.3g}, but {self.schedule!r} sets it. To use "
                "one of torch's schedulers, pass lr, precision_lr and momentum to the optimizer."
            )
        t = pending.step.state.step
        assert pending.step.evaluation is not None
        share = pending.step.evaluation.count / self.num_data
        if t == self.schedule.last:
            warn_user(
                f"steps: this is step {t + 1}, but the schedule was made for {t} steps. Further steps keep the last "
                f"learning rate, {lr:.3g}. Pass the number of all steps that training will take.",
                ScheduleWarning,
            )
        rate = self.schedule.precision_rate(t, share) if precision_lr is None else precision_lr
        if precision_lr is None and isinstance(self.curvature, ExactHessian):
            rate = min(rate, _INDEFINITE)
        return self._scheduled(self.schedule, t, share), rate

    def _scheduled(self, schedule: Schedule, step: int, share: float) -> float:
        """β of the schedule for a step on a share M / N of the data."""
        return check_rate("scale", schedule.mean_rate(step, share, peak_rate(self.structure)))

    def _beta(self) -> float:
        """The current lr, or the initial one where a schedule has reached 0."""
        return float(self.param_groups[0]["lr"] or self.defaults["lr"])

    def _forget(self) -> None:
        """Discard a step that has begun, and restore the generator and the running statistics."""
        if self._pending is not None:
            self.generator.set_state(self._pending.generator_before)
        self._pending = None
        self._trained.restore_statistics()

    def _current(self) -> State:
        return replace(self._state, mean=self._trained.mean())

    def _batch(self, data: object) -> Data:
        found = read_data(data)
        return self._trained.batch(found.inputs, found.targets)

    def _method(self) -> OnlineNewton:
        """The pure update for the network as it is now."""
        return OnlineNewton(
            self._trained.features(),
            self.likelihood,
            self.num_data,
            self.prior_precision,
            self.curvature,
            self.structure,
            self.num_samples,
            float(self.param_groups[0]["momentum"]),
            self.temperature,
            self.antithetic,
        )
