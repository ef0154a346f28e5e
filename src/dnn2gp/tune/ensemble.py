"""B small networks of one architecture, each with weights, data and δ of its own, computed together.

What tuning asks for: (setting × repeat) trainings and their evidences as one batch of products rather than one after
another. Everything is in float64 and in weight space, so it is meant for some thousand weights at the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from math import log, pi

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.network.eval_mode import evaluation_mode
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import chunks

# Jacobians of this many bytes are held at a time: in a cache-friendly size they are also the fastest.
_JACOBIAN_BYTES = 2**23


@dataclass(frozen=True, eq=False)
class EnsembleCurvature:
    """What a step of Gauss-Newton, and the evidence, need of each member at its weights."""

    matrix: Float[Tensor, "B P P"]
    """JᵀΛJ, without the prior."""
    gradient: Float[Tensor, "B P"]
    """∇ℓ̄(w) = Jᵀr + δ w."""
    relative_gradient: Float[Tensor, " B"]
    """‖∇ℓ̄‖ / (‖Jᵀr‖ + ‖δw‖): 0 at a minimum, up to 1 elsewhere."""


class Ensemble:
    """The losses Σᵢ ℓ(yᵢ, f_w(xᵢ)) + ½ δ wᵀw of B members.

    network          gives the architecture; its weights with requires_grad are the members' own, others are shared
    inputs, targets  of each member, B × N × …, or of all members, 1 × N × …
    likelihood       the same for all; members with other noise σ in a regression are those with δσ² and σ = 1
    prior_precision  δ of each member, B, or of each of its weights, B × P
    """

    def __init__(
        self,
        network: nn.Module,
        inputs: Float[Tensor, "C N *in"],
        targets: Shaped[Tensor, "C N *out"],
        likelihood: Likelihood,
        prior_precision: Float[Tensor, "B *P"],
    ) -> None:
        if likelihood.per_example:
            raise InputError("likelihood: expected noise that is the same for all examples; got one σ for each.")
        self.network, self.likelihood = network, likelihood
        self.layout = layout_of(network)
        prior_precision = prior_precision.double()
        self.inputs = inputs.double()
        self.prior_precision = prior_precision[:, None] if prior_precision.ndim == 1 else prior_precision
        """B × 1 or B × P."""
        self.targets = targets.double() if targets.is_floating_point() else targets
        fixed = [*network.named_buffers(), *((k, v) for k, v in network.named_parameters() if not v.requires_grad)]
        self._fixed = {name: _wide(tensor.detach()) for name, tensor in fixed}
        self._num_outputs: int | None = None
        if len(inputs) not in (1, len(prior_precision)) or inputs.shape[:2] != targets.shape[:2]:
            raise InputError(
                f"expected data of each of {len(prior_precision)} members, B × N × …, or of all, 1 × N × …; got inputs "
                f"{tuple(inputs.shape)} and targets {tuple(targets.shape)}."
            )

    @property
    def size(self) -> int:
        """B."""
        return len(self.prior_precision)

    def batches(self) -> bool:
        """Whether torch can batch the Jacobians of this network; it cannot where a layer works in place."""
        weights = torch.zeros(1, self.layout.num_weights, dtype=torch.float64)
        few = copy(self)
        few.inputs, few.targets = self.inputs[:1, :2], self.targets[:1, :2]
        few.prior_precision = self.prior_precision[:1]
        try:
            few.curvature(weights)
        except RuntimeError:
            return False
        return True

    def take(self, members: Shaped[Tensor, " C"]) -> Ensemble:
        """Some of the members, by index."""
        shared = len(self.inputs) == 1
        inputs, targets = (self.inputs, self.targets) if shared else (self.inputs[members], self.targets[members])
        other = copy(self)
        other.inputs, other.targets, other.prior_precision = inputs, targets, self.prior_precision[members]
        return other

    def outputs(self, weights: Float[Tensor, "B P"], inputs: Float[Tensor, "C N *in"]) -> Float[Tensor, "B N K"]:
        """f_w(x) of each member at its weights."""
        shared = len(inputs) == 1 and len(weights) > 1
        with evaluation_mode(self.network):
            call = vmap(self._network, in_dims=(0, None if shared else 0))
            return call(weights, inputs[0] if shared else inputs)

    def data_loss(self, weights: Float[Tensor, "B P"]) -> Float[Tensor, " B"]:
        """Σᵢ ℓᵢ(w)."""
        outputs = self.outputs(weights, self.inputs)
        return self._likelihood(self.likelihood.loss, outputs).sum(1)

    def loss(self, weights: Float[Tensor, "B P"]) -> Float[Tensor, " B"]:
        """Σᵢ ℓᵢ(w) + ½ δ wᵀw."""
        return self.data_loss(weights) + 0.5 * (self.prior_precision * weights.square()).sum(1)

    def curvature(self, weights: Float[Tensor, "B P"]) -> EnsembleCurvature:
        """JᵀΛJ and the gradients, with as many rows of the Jacobian in memory as fit a cache-friendly block."""
        num_weights = self.layout.num_weights
        matrix = weights.new_zeros(len(weights), num_weights, num_weights)
        data = weights.new_zeros(len(weights), num_weights)
        for members, examples in self._blocks(weights):
            rows, residual = self._sites(weights[members], members, examples)
            matrix[members].baddbmm_(rows.mT, rows)
            data[members] += residual
        prior = self.prior_precision * weights
        gradient, parts = data + prior, data.norm(dim=1) + prior.norm(dim=1)
        relative = torch.where(parts > 0, gradient.norm(dim=1) / parts, 0.0)
        return EnsembleCurvature(matrix, gradient, relative)

    def evidence(
        self,
        weights: Float[Tensor, "B P"],
        curvature: EnsembleCurvature | None = None,
        variance: Float[Tensor, " B"] | None = None,
        *,
        at_weights: bool = False,
    ) -> Float[Tensor, " B"]:
        """The log marginal likelihood of each member's data, as `Evidence.value` has it.

        log p(D|w) − ½ δ wᵀw − ½ log |I + JᵀΛJ/δ|, and + ½ gᵀΣ̃g for a Gaussian likelihood.

        `variance`: σ² of each member, where all were trained with GaussianLikelihood(1) and δσ²; the evidence is then
        that with σ and δ. `at_weights`: Laplace's for a Gaussian likelihood too. A member whose Σ̃⁻¹ is not positive
        definite, by rounding or NaN, has NaN.
        """
        curvature = self.curvature(weights) if curvature is None else curvature
        value, gain = self._evidence_and_gain(weights, curvature, variance)
        if at_weights or not isinstance(self.likelihood, GaussianLikelihood):
            return value
        return value + gain

    def cautious_evidence(
        self, weights: Float[Tensor, "B P"], curvature: EnsembleCurvature, variance: Float[Tensor, " B"] | None = None
    ) -> Float[Tensor, " B"]:
        """Laplace's at the weights, less ½ gᵀΣ̃g: to compare trainings that may not have ended.

        At a minimum it is the evidence. Elsewhere it is charged by what a Gauss-Newton step would still gain, so that
        weights that are no minimum do not win by being none.
        """
        value, gain = self._evidence_and_gain(weights, curvature, variance)
        return value - gain

    def _evidence_and_gain(
        self, weights: Float[Tensor, "B P"], curvature: EnsembleCurvature, variance: Float[Tensor, " B"] | None
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Laplace's evidence at the weights, and ½ gᵀΣ̃g; NaN where Σ̃⁻¹ is not positive definite."""
        unit = torch.ones(len(weights), dtype=weights.dtype) if variance is None else variance
        matrix, gradient = curvature.matrix / unit[:, None, None], curvature.gradient / unit[:, None]
        delta = (self.prior_precision / unit[:, None]).expand_as(weights)
        with torch.no_grad():
            fit = self._likelihood(self.likelihood.log_prob, self.outputs(weights, self.inputs)).sum(1)
        if variance is not None:  # log N(y | f, σ²) from log N(y | f, 1)
            half = 0.5 * self.targets[0].numel()
            fit = (fit + half * log(2 * pi)) / variance - half * (2 * pi * variance).log()
        factor, failed = torch.linalg.cholesky_ex(matrix + torch.diag_embed(delta))
        fit = torch.where(failed == 0, fit, torch.nan)
        log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1) - delta.log().sum(1)
        value = fit - 0.5 * (delta * weights.square()).sum(1) - 0.5 * log_det
        white = torch.linalg.solve_triangular(factor, gradient[..., None], upper=False)
        return value, 0.5 * white.square().sum((1, 2))

    def variances(
        self, weights: Float[Tensor, "B P"], curvature: EnsembleCurvature, inputs: Float[Tensor, "C N *in"]
    ) -> Float[Tensor, "B N K"]:
        """diag(J Σ̃ Jᵀ) of each output at other inputs, Σ̃ the posterior covariance of each member."""
        precision = curvature.matrix + torch.diag_embed(self.prior_precision.expand_as(weights))
        factor = torch.linalg.cholesky(precision)
        found = []
        for member in range(len(weights)):
            own = inputs[0 if len(inputs) == 1 else member]
            with evaluation_mode(self.network):
                jacobian, _ = vmap(self._jacobian, in_dims=(None, 0))(weights[member], own)
            white = torch.linalg.solve_triangular(factor[member], jacobian.flatten(0, 1).T, upper=False)
            found.append(white.square().sum(0).unflatten(0, jacobian.shape[:2]))
        return torch.stack(found)

    def _network(self, weights: Float[Tensor, " P"], inputs: Float[Tensor, "N *in"]) -> Float[Tensor, "N K"]:
        tensors = {**self.layout.unflatten(weights), **self._fixed}
        return functional_call(self.network, tensors, (inputs,)).flatten(1)

    def _likelihood(self, function: Callable[..., Tensor], outputs: Float[Tensor, "B N K"]) -> Tensor:
        """A function of (f, y), for all examples of all members."""
        targets = self.targets.expand(len(outputs), *self.targets.shape[1:])
        return function(outputs.flatten(0, 1), targets.flatten(0, 1)).unflatten(0, outputs.shape[:2])

    def _blocks(self, weights: Float[Tensor, "B P"]) -> Iterator[tuple[slice, slice]]:
        """Members and examples whose Jacobians are made together."""
        examples = self.inputs.shape[1]
        if self._num_outputs is None:
            with evaluation_mode(self.network), torch.no_grad():
                self._num_outputs = self._network(weights[0], self.inputs[0, :1]).shape[1]
        each = 8 * self._num_outputs * weights.shape[1]
        rows = max(1, _JACOBIAN_BYTES // each)
        for members in chunks(len(weights), max(1, rows // examples)):
            for part in chunks(examples, min(rows, examples)):
                yield members, part

    def _sites(
        self, weights: Float[Tensor, "b P"], members: slice, examples: slice
    ) -> tuple[Float[Tensor, "b m P"], Float[Tensor, "b P"]]:
        """SᵀJ and Jᵀr of some examples of some members."""
        shared = len(self.inputs) == 1
        own = slice(0, 1) if shared else members
        inputs, targets = self.inputs[own, examples], self.targets[own, examples]
        inputs = inputs.expand(len(weights), *inputs.shape[1:])
        targets = targets.expand(len(weights), *targets.shape[1:])
        with evaluation_mode(self.network):
            jacobian, outputs = vmap(vmap(self._jacobian, in_dims=(None, 0)), in_dims=(0, 0))(weights, inputs)
        flat, y = outputs.flatten(0, 1), targets.flatten(0, 1)
        residual = self.likelihood.residual(flat, y)
        root = self.likelihood.noise_precision_root(flat, y)
        jacobian = jacobian.flatten(0, 1)
        pulled = (residual.unsqueeze(1) @ jacobian).squeeze(1).unflatten(0, inputs.shape[:2]).sum(1)
        rows = jacobian * root if root.shape[1:] == (1, 1) else root.mT @ jacobian
        return rows.unflatten(0, inputs.shape[:2]).flatten(1, 2), pulled

    def _jacobian(self, weights: Float[Tensor, " P"], example: Float[Tensor, " *in"]) -> tuple[Tensor, Tensor]:
        def one(point: Float[Tensor, " P"]) -> tuple[Tensor, Tensor]:
            outputs = self._network(point, example[None])[0]
            return outputs, outputs

        return jacrev(one, has_aux=True)(weights)


def initial_weights(build: Callable[[], nn.Module], seeds: Sequence[int]) -> Float[Tensor, "B P"]:
    """The first weights that `build` draws after each seed; the global generator is left as it was."""
    found = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.manual_seed(seed)
            network = build()
            found.append(layout_of(network).flatten(dict(network.named_parameters())).detach().double())
    return torch.stack(found)


def layout_of(network: nn.Module) -> Layout:
    """How the weights of a module that train lie in a flat vector."""
    named = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    return Layout(tuple(named), tuple(weight.shape for weight in named.values()))


def write_weights(network: nn.Module, weights: Float[Tensor, " P"]) -> None:
    """Put a flat vector into a module."""
    with torch.no_grad():
        for name, value in layout_of(network).unflatten(weights).items():
            network.get_parameter(name).copy_(value)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
