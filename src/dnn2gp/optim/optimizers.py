"""The online-Newton family as torch optimizers: rows of one table.

    class    evaluated at    curvature            precision
    VON      samples         exact Hessian        dense
    ON       the mean        exact Hessian        dense
    VOGGN    samples         Gauss-Newton         dense
    OGGN     the mean        Gauss-Newton         dense
    VOGN     samples         empirical Fisher     diagonal
    OGN      the mean        empirical Fisher     diagonal

The loop is `optimizer.step(inputs, targets)`: network and likelihood are given once. The network's weights are the mean
of q_t after every step, so that `network(x)` is the network at the mean.
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
from dnn2gp.gp.network_samples import SampledPredictive, check_count, networks_at
from dnn2gp.inference import Inference
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network.data import Data, read_data
from dnn2gp.network.inputs import Inputs, check_inputs
from dnn2gp.optim.trained_network import TrainedNetwork
from dnn2gp.optim.variational_evidence import VariationalEvidence, linear_model_evidences
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.support.memory import check_budget, default_budget
from dnn2gp.weights.curvature import Curvature, EmpiricalFisher, Evaluation, ExactHessian, GaussNewton
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.online_newton import (
    OnlineNewton,
    State,
    StepInfo,
    check_rate,
    check_settings,
    expected_log_likelihood,
    first_precision,
)
from dnn2gp.weights.priors import PriorPrecision, expand_precision
from dnn2gp.weights.structures import Dense, Diagonal

_KEY = "online_newton"
_HELD = {"method", "num_data", "temperature", "step", "precision", "momentum", "momentum_weight", "generator"}


@dataclass
class _Pending:
    """A step that has begun: q_t, its samples, and what its batches gave so far."""

    method: OnlineNewton
    state: State
    samples: Float[Tensor, "S P"]
    before: Tensor
    """The generator's state before the samples were drawn."""
    batches: list[Data]
    evaluation: Evaluation | None = None
    gradient: Float[Tensor, " P"] | None = None
    written: tuple[Tensor, ...] = ()
    """What was put into the `grad` of the weights."""


class OnlineNewtonOptimizer(torch.optim.Optimizer):
    """What all rows share. lr is β_t, the share of a whole Newton step, on the *summed* loss: between 0 and 1.

    network            the module that trains; its weights with requires_grad are those that get a posterior
    likelihood         the loss, e.g. CategoricalLikelihood()
    num_data           N, the number of all training examples, for which a batch stands
    lr                 β_t of the mean; schedulers move it
    precision_lr       the rate of the precision; None: the same as lr, as in Theorem 2
    prior_precision    δ of the prior N(0, δ⁻¹ I): a number, one a layer, or one a weight
    num_samples        S samples of q_t a step; 0 for the methods that look at the mean
    initial_precision  Σ_0⁻¹ = initial_precision · I; None: N
    momentum           γ of an average of past gradients, whose start is corrected for; schedulers may move it
    temperature        T of a posterior ∝ p(D|w)^{1/T} p(w)
    antithetic         samples in pairs μ ± ε
    seed               of the samples; they have a generator of their own, which `state_dict` holds
    """

    curvature: ClassVar[type[Curvature]]
    structure: ClassVar[type[Dense] | type[Diagonal]]
    at_mean: ClassVar[bool]

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        num_data: int,
        *,
        lr: float = 0.1,
        precision_lr: float | None = None,
        prior_precision: PriorPrecision = 1.0,
        num_samples: int | None = None,
        initial_precision: float | None = None,
        momentum: float = 0.0,
        temperature: float = 1.0,
        antithetic: bool = False,
        seed: int = 0,
        memory_budget: int | float | None = None,
    ) -> None:
        if not isinstance(likelihood, Likelihood) or likelihood.per_example:
            raise InputError(
                "likelihood: expected a dnn2gp likelihood for all examples alike, e.g. CategoricalLikelihood() or "
                f"GaussianLikelihood(0.1); got {likelihood!r}."
            )
        samples = (0 if self.at_mean else 1) if num_samples is None else num_samples
        if self.at_mean and samples != 0:
            raise InputError(f"num_samples: {type(self).__name__} looks at the mean and draws none; got {num_samples}.")
        if not self.at_mean and samples == 0:
            raise InputError(
                f"num_samples: expected at least 1 sample; got 0. {type(self).__name__[1:]} is the method that looks "
                "at the mean instead."
            )
        check_settings(num_data, samples, momentum, temperature, antithetic)
        check_rate("lr", lr)
        if precision_lr is not None:
            check_rate("precision_lr", precision_lr)
        trained = TrainedNetwork(network, likelihood.detached(), check_budget(memory_budget))
        defaults = {"lr": lr, "precision_lr": precision_lr, "momentum": momentum}
        super().__init__(list(trained.named.values()), defaults)
        self.network, self.likelihood, self.num_data = network, trained.likelihood, num_data
        self.num_samples, self.temperature, self.antithetic = samples, temperature, antithetic
        self._trained = trained
        mean = trained.mean()
        self.prior_precision = expand_precision(prior_precision, trained.layout, mean)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InputError(f"seed: expected a whole number; got {seed!r}.")
        self.generator = torch.Generator(device=mean.device).manual_seed(seed)
        budget = default_budget() if trained.memory_budget is None else trained.memory_budget
        first = float(num_data) if initial_precision is None else initial_precision
        precision = first_precision(self.structure, mean, first, budget)
        self._state = State(mean, precision, torch.zeros_like(mean))
        """q_t but for its mean, which the network holds."""
        self._pending: _Pending | None = None

    def snapshot(self) -> State:
        """q_t, its momentum and t, as a value of its own."""
        own = self._snapshot()
        values = next(iter(own.precision.state().values())).clone()
        return replace(own, precision=type(own.precision)(values), momentum=own.momentum.clone())

    def posterior(self) -> Gaussian:
        """q_t = N(μ_t, Σ_t)."""
        return self.snapshot().posterior()

    def backward(self, inputs: Inputs, targets: Tensor) -> float:
        """Evaluate a batch at the samples of this step, and put ĝ T/N into the weights' `grad`; returns the mean loss.

        Several calls before `step` add up: their batches count as one. Gradients may be clipped after the last of them.
        """
        try:
            return self._evaluate(inputs, targets)
        except BaseException:
            self._forget()
            raise

    def step(self, inputs: Inputs | None = None, targets: Tensor | None = None) -> StepInfo:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step on this batch; without one, on what `backward` has evaluated, with the gradients as they are now."""
        if inputs is not None:
            if targets is None:
                raise InputError("step: expected inputs and targets; the targets are missing.")
            if self._pending is not None:
                raise InputError(
                    "step: a step has begun with backward(). Call step() without data to take it, add this batch with "
                    "backward(inputs, targets) first, or call zero_grad() to forget it."
                )
            self.backward(inputs, targets)
        pending = self._pending
        if pending is None or pending.evaluation is None:
            raise InputError("step: expected step(inputs, targets), or backward(inputs, targets) before step().")
        try:
            gradient, group = self._gradient(pending), self.param_groups[0]
            lr, own = float(group["lr"]), group["precision_lr"]
            if lr != 0:  # 0 in the first step of a warm-up, or at the end of a schedule: the mean stays
                check_rate("lr", lr)
            if own is not None:
                check_rate("precision_lr", own)
            after = pending.method.apply(pending.state, pending.evaluation, gradient, lr, own)
            self._trained.write(after.mean)
            self._state = after
        except BaseException:
            self._forget()
            raise
        self._pending = None
        self._trained.keep_statistics()
        batches = tuple(pending.batches)
        return StepInfo(pending.method, pending.state.step, pending.samples, batches, lr, pending.evaluation, gradient)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and what `backward` has evaluated since the last step."""
        self._forget()
        super().zero_grad(set_to_none)

    def kl(self) -> float:
        """KL(q_t ‖ p), p = N(0, δ⁻¹ I)."""
        return self.posterior().kl(Gaussian.prior(self.prior_precision)).item()

    def elbo(self, data: object, num_samples: int = 10, generator: torch.Generator | None = None) -> float:
        """(1/T) E_q log p(D | w) − KL(q ‖ p), with the expectation over `num_samples` networks.

        Some of the data stand for all: their log-likelihood is multiplied by N / M.
        """
        check_count(num_samples)
        batch = self._trained.batch(*_pair(data))
        method = self._method()
        method.check_count(batch.num_examples)
        found = expected_log_likelihood(method, self._snapshot(), batch, num_samples, generator)
        return method.scale(batch.num_examples) * found.item() - self.kl()

    def evidence(
        self, data: object, num_samples: int = 10, generator: torch.Generator | None = None
    ) -> VariationalEvidence:
        """The evidence of the linear model of iteration t, that with the plain prior, and the ELBO, each by its name.

        The first two hold a dense matrix of the weights or of the data, whichever is smaller.
        """
        check_count(num_samples)
        batch, state = self._trained.batch(*_pair(data)), self.snapshot()
        rate = float(self.param_groups[0]["lr"] or self.defaults["lr"])
        step, plain = linear_model_evidences(self._method(), state, batch, rate, num_samples, generator)
        return VariationalEvidence(step, plain, self.elbo(data, num_samples, generator), num_samples)

    def sample_network(
        self, inputs: Inputs, num_samples: int = 30, generator: torch.Generator | None = None
    ) -> SampledPredictive:
        """The paper's DNN-VI: predictions of `num_samples` networks w ~ q_t, their mean and both kinds of variance."""
        check_count(num_samples)
        network = self._trained.features(check_inputs(inputs)).network
        return networks_at(network, self.posterior().sample(num_samples, generator), inputs, self.likelihood)

    def gaussian_process(
        self,
        data: object,
        *,
        beta: float | None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        inference: type[Inference] | None = None,
    ) -> GaussianProcess:
        """The GP of iteration t (Theorem 2) on these examples, which stand for all the data; training is not touched.

        beta         by default the present lr, or the first one where a schedule has it at 0
        num_samples  of q_t, by default as many as a step draws
        """
        batch = self._trained.batch(*_pair(data))
        method = self._method()
        if num_samples is not None:
            method = replace(method, num_samples=num_samples, antithetic=False)
        state = self.snapshot()
        rate = float(self.param_groups[0]["lr"] or self.defaults["lr"]) if beta is None else beta
        return convert_step(state, method.look(state, batch, rate, generator), inference=inference)

    def state_dict(self) -> dict[str, Any]:
        """The groups as ever, and the precision, momentum, step and generator; the mean is in the network's own."""
        if self._pending is not None:
            raise InputError("state_dict: a step has begun. Call step() or zero_grad() first.")
        own = {
            "method": type(self).__name__,
            "num_data": self.num_data,
            "temperature": self.temperature,
            "step": self._state.step,
            "precision": next(iter(self._state.precision.state().values())).clone(),
            "momentum": self._state.momentum.clone(),
            "momentum_weight": self._state.momentum_weight,
            "generator": self.generator.get_state(),
        }
        return {**super().state_dict(), _KEY: own}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The inverse; load the network's weights too, with its own load_state_dict."""
        own = state_dict.get(_KEY)
        if not isinstance(own, dict) or set(own) != _HELD:
            raise FileFormatError(f"load_state_dict: expected what {type(self).__name__}.state_dict() returned.")
        now = self._state
        expected = next(iter(now.precision.state().values()))
        if own["method"] != type(self).__name__ or own["precision"].shape != expected.shape:
            raise FileFormatError(
                f"load_state_dict: expected the state of {type(self).__name__} with a precision of shape "
                f"{tuple(expected.shape)}; got that of {own['method']} with {tuple(own['precision'].shape)}."
            )
        for name in ("num_data", "temperature"):
            if own[name] != getattr(self, name):
                raise FileFormatError(
                    f"load_state_dict: expected the state of a training with {name} = {getattr(self, name)}; got one "
                    f"with {own[name]}. Make the optimizer with the settings that it had."
                )
        values = own["precision"].to(expected, copy=True)
        loaded = State(
            now.mean,
            Dense(values) if self.structure is Dense else Diagonal(values),
            own["momentum"].to(now.momentum, copy=True),
            float(own["momentum_weight"]),
            int(own["step"]),
        )
        super().load_state_dict({name: value for name, value in state_dict.items() if name != _KEY})
        self.generator.set_state(own["generator"].cpu())
        self._state, self._pending = loaded, None
        self._trained.keep_statistics()

    def __getstate__(self) -> dict[str, Any]:
        """Neither copies nor pickles: a copy would train weights that belong to no network."""
        raise TypeError(
            f"A {type(self).__name__} cannot be copied or pickled as a whole. Copy the network, make an optimizer for "
            "the copy, and give it this one's state: copy.load_state_dict(optimizer.state_dict())."
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """One group only: q_t is a Gaussian over all weights together."""
        if self.param_groups:
            raise InputError(
                "One group of weights: q_t is a Gaussian over all of them. For other priors give prior_precision a "
                "number a layer; to leave layers out, freeze them (requires_grad_(False))."
            )
        super().add_param_group(param_group)

    def _evaluate(self, inputs: Inputs, targets: Tensor) -> float:
        batch = self._trained.batch(inputs, targets)
        pending = self._pending
        if pending is not None and self._trained.touched(pending.written):
            raise InputError(
                "backward: the weights' grad was changed since the last backward(), which this one would undo. Clip "
                "after the last batch of a step. The step that had begun is forgotten."
            )
        self._trained.refresh_statistics(batch.inputs)
        if pending is None:
            method, state, before = self._method(), self._snapshot(), self.generator.get_state()
            pending = _Pending(method, state, method.sample(state, self.generator), before, [])
            self._pending = pending
        pending.method.check_count(batch.num_examples + sum(each.num_examples for each in pending.batches))
        found = pending.method.evaluate(pending.state, pending.samples, batch, len(pending.batches))
        pending.batches.append(batch)
        pending.evaluation = found if pending.evaluation is None else pending.evaluation.plus(found)
        pending.gradient = pending.method.gradient(pending.state, pending.evaluation)
        scaled = pending.gradient * (self.temperature / self.num_data)
        pending.written = self._trained.write_grads(scaled.to(pending.state.mean.dtype))
        return found.loss.item() / found.count

    def _gradient(self, pending: _Pending) -> Float[Tensor, " P"]:
        """ĝ; or N / T times what a user made of the weights' `grad`, if he touched it."""
        assert pending.gradient is not None
        if not self._trained.touched(pending.written):
            return pending.gradient
        return self._trained.read_grads().double() * (self.num_data / self.temperature)

    def _forget(self) -> None:
        """As if the step had not begun."""
        if self._pending is not None:
            self.generator.set_state(self._pending.before)
        self._pending = None
        self._trained.restore_statistics()

    def _snapshot(self) -> State:
        return replace(self._state, mean=self._trained.mean())

    def _method(self) -> OnlineNewton:
        """The method for the network as it is now."""
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


def _pair(data: object) -> tuple[Inputs, Tensor]:
    found = read_data(data)
    return found.inputs, found.targets


class VON(OnlineNewtonOptimizer):
    """Variational online Newton, Eqs. (11) and (12), with the exact Hessian at samples of q_t. For small networks.

    For the arguments see `OnlineNewtonOptimizer`.
    """

    curvature, structure, at_mean = ExactHessian, Dense, False


class ON(OnlineNewtonOptimizer):
    """Online Newton: the exact Hessian at the mean. For small networks.

    For the arguments see `OnlineNewtonOptimizer`.
    """

    curvature, structure, at_mean = ExactHessian, Dense, True


class VOGGN(OnlineNewtonOptimizer):
    """Variational online Gauss-Newton, dense: the method of Theorem 2.

    For the arguments see `OnlineNewtonOptimizer`.
    """

    curvature, structure, at_mean = GaussNewton, Dense, False


class OGGN(OnlineNewtonOptimizer):
    """Online Gauss-Newton at the mean, dense: stops at a minimum of the loss.

    For the arguments see `OnlineNewtonOptimizer`.
    """

    curvature, structure, at_mean = GaussNewton, Dense, True


class VOGN(OnlineNewtonOptimizer):
    """Variational online Gauss-Newton with a diagonal precision, from squared gradients of the examples.

    For the arguments see `OnlineNewtonOptimizer`.
    """

    curvature, structure, at_mean = EmpiricalFisher, Diagonal, False


class OGN(OnlineNewtonOptimizer):
    """The same at the mean: stops at a minimum of the loss, and keeps a Gaussian.

    For the arguments see `OnlineNewtonOptimizer`.
    """

    curvature, structure, at_mean = EmpiricalFisher, Diagonal, True
