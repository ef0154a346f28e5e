"""B small networks of one architecture, each with its own weights, data and δ, evaluated as one batch.

A fast path for tuning, which needs one training run and its evidence per setting and repeat. Everything is in float64
and in weight space, so it is meant for networks of up to a few thousand weights. A test checks that it agrees with
`convert`.
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

# Size in bytes of the Jacobians held at a time; what fits into the cache is also the fastest.
_JACOBIAN_BYTES = 2**23


@dataclass(frozen=True, eq=False)
class EnsembleCurvature:
    """JᵀΛJ and the gradient of each member at its weights: what a Gauss-Newton step and the evidence need."""

    matrix: Float[Tensor, "B P P"]
    """JᵀΛJ, without the prior."""
    gradient: Float[Tensor, "B P"]
    """∇ℓ̄(w) = Jᵀr + δ w."""
    relative_gradient: Float[Tensor, " B"]
    """‖∇ℓ̄‖ / (‖Jᵀr‖ + ‖δw‖): 0 at a minimum, up to 1 elsewhere."""


class Ensemble:
    """The losses Σᵢ ℓ(yᵢ, f_w(xᵢ)) + ½ δ wᵀw of B members.

    network          the architecture; members differ in the weights with requires_grad and share all others
    inputs, targets  one data set per member, B × N × …, or one for all, 1 × N × …
    likelihood       the same for all members; a regression with noise σ and δ is one with noise 1 and δσ²
    prior_precision  δ: one per member, B, or one per weight of each member, B × P
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
            raise InputError("likelihood: expected the same noise for all examples; got one σ per example.")
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
                f"inputs: expected one data set for each of {len(prior_precision)} members (B × N × …) or one for "
                f"all (1 × N × …); got inputs of shape {tuple(inputs.shape)} and targets of shape "
                f"{tuple(targets.shape)}."
            )

    @property
    def size(self) -> int:
        """B."""
        return len(self.prior_precision)

    def batches(self) -> bool:
        """Whether torch can batch the Jacobians of this network; it cannot if a layer works in place."""
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
        """The members with these indices."""
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

    def loss(self, weights: Float[Tensor, "B P"]) -> Float[Tensor, " B"]:
        """Σᵢ ℓᵢ(w) + ½ δ wᵀw."""
        data = self._likelihood(self.likelihood.loss, self.outputs(weights, self.inputs)).sum(1)
        return data + 0.5 * (self.prior_precision * weights.square()).sum(1)

    def log_prob(self, weights: Float[Tensor, "B P"]) -> Float[Tensor, " B"]:
        """log p(D | w) of each member's data."""
        return self._likelihood(self.likelihood.log_prob, self.outputs(weights, self.inputs)).sum(1)

    def curvature(self, weights: Float[Tensor, "B P"]) -> EnsembleCurvature:
        """JᵀΛJ and the gradients, computed in blocks of Jacobian rows that fit into the cache."""
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
    ) -> Float[Tensor, " B"]:
        """The log marginal likelihood of each member's data, equal to `Evidence.value`.

        log p(D|w) − ½ δ wᵀw − ½ log |I + JᵀΛJ/δ|, and + ½ gᵀΣ̃g for a Gaussian likelihood.

        `variance` is σ² of each member if the ensemble has GaussianLikelihood(1) and δσ²; the result is then the
        evidence for σ and δ. It is NaN for a member whose Σ̃⁻¹ is not positive definite, by rounding or NaN.
        """
        curvature = self.curvature(weights) if curvature is None else curvature
        value, gain = self._evidence_and_gain(weights, curvature, variance)
        return value + gain if isinstance(self.likelihood, GaussianLikelihood) else value

    def cautious_evidence(
        self, weights: Float[Tensor, "B P"], curvature: EnsembleCurvature, variance: Float[Tensor, " B"] | None = None
    ) -> Float[Tensor, " B"]:
        """The Laplace evidence at the weights minus ½ gᵀΣ̃g, to compare training runs that may not have converged.

        At a minimum it is the evidence. Elsewhere the gain of one more Gauss-Newton step is subtracted, so that
        weights away from a minimum cannot win for that reason.
        """
        value, gain = self._evidence_and_gain(weights, curvature, variance)
        return value - gain

    def _evidence_and_gain(
        self, weights: Float[Tensor, "B P"], curvature: EnsembleCurvature, variance: Float[Tensor, " B"] | None
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """The Laplace evidence at the weights, and ½ gᵀΣ̃g; NaN where Σ̃⁻¹ is not positive definite."""
        unit = torch.ones(len(weights), dtype=weights.dtype) if variance is None else variance
        matrix, gradient = curvature.matrix / unit[:, None, None], curvature.gradient / unit[:, None]
        delta = (self.prior_precision / unit[:, None]).expand_as(weights)
        with torch.no_grad():
            fit = self.log_prob(weights)
        if variance is not None:  # log N(y | f, σ²) from log N(y | f, 1)
            half = 0.5 * self.targets[0].numel()
            fit = (fit + half * log(2 * pi)) / variance - half * (2 * pi * variance).log()
        factor, failed = torch.linalg.cholesky_ex(matrix + torch.diag_embed(delta))
        fit = torch.where(failed == 0, fit, torch.nan)
        log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1) - delta.log().sum(1)
        value = fit - 0.5 * (delta * weights.square()).sum(1) - 0.5 * log_det
        white = torch.linalg.solve_triangular(factor, gradient[..., None], upper=False)
        return value, 0.5 * white.square().sum((1, 2))

    def _network(self, weights: Float[Tensor, " P"], inputs: Float[Tensor, "N *in"]) -> Float[Tensor, "N K"]:
        tensors = {**self.layout.unflatten(weights), **self._fixed}
        return functional_call(self.network, tensors, (inputs,)).flatten(1)

    def _likelihood(self, function: Callable[..., Tensor], outputs: Float[Tensor, "B N K"]) -> Tensor:
        """A function of (f, y), for all examples of all members."""
        targets = self.targets.expand(len(outputs), *self.targets.shape[1:])
        return function(outputs.flatten(0, 1), targets.flatten(0, 1)).unflatten(0, outputs.shape[:2])

    def _blocks(self, weights: Float[Tensor, "B P"]) -> Iterator[tuple[slice, slice]]:
        """Members and examples whose Jacobians are computed together."""
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
        """SᵀJ and Jᵀr for a block of members and examples."""
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


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The module that `build` makes after torch.manual_seed(seed); the global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def initial_weights(build: Callable[[], nn.Module], seeds: Sequence[int]) -> Float[Tensor, "B P"]:
    """The weights that `build` draws after each seed."""
    networks = [seeded(build, seed) for seed in seeds]
    return torch.stack([read_weights(network).double() for network in networks])


def read_weights(network: nn.Module) -> Float[Tensor, " P"]:
    """A copy of the trainable weights as one vector."""
    return layout_of(network).flatten(dict(network.named_parameters())).detach()


def layout_of(network: nn.Module) -> Layout:
    """The layout of the trainable weights of a module in a flat vector."""
    named = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    return Layout(tuple(named), tuple(weight.shape for weight in named.values()))


def write_weights(network: nn.Module, weights: Float[Tensor, " P"]) -> None:
    """Write a flat vector into the trainable weights of a module."""
    with torch.no_grad():
        for name, value in layout_of(network).unflatten(weights).items():
            network.get_parameter(name).copy_(value)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
