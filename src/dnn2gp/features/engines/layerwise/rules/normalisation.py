"""The affine part of normalisation layers: z = w ∘ x̂ + b with x̂ the normalised input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks import Block, Rows
from dnn2gp.features.engines.layerwise.places import BatchAxis, FlatWeights
from dnn2gp.features.engines.layerwise.rules.base import Use, argument, form, rule


@dataclass(frozen=True, eq=False)
class AffineUse(Use):
    """∂f/∂w = Σ_l g_l ∘ x̂_l and ∂f/∂b = Σ_l g_l, over the positions l that share w and b."""

    normalised: Float[Tensor, "*B d"]
    """x̂ with the axes of w last, as one."""
    channels: bool
    """Whether w belongs to axis 1 of the call's output (BatchNorm, GroupNorm) rather than to its last axes."""
    has_weight: bool
    has_bias: bool

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """All axes but the last; for channels, the first."""
        return tuple(self.normalised.shape[:1] if self.channels else self.normalised.shape[:-1])

    @property
    def kept(self) -> None:
        """None: x̂ is not a tensor of the network."""
        return None

    @property
    def at_once(self) -> int | None:
        """For channels, each cotangent on its own: nothing is gained by keeping their gradients."""
        return 1 if self.channels else None

    def condensed(self, gradients: Float[Tensor, "R ..."]) -> Float[Tensor, "R ..."]:
        """For channels, the sums over positions already: R × B × (d for the weight, d for the bias)."""
        if not self.channels:
            return gradients
        G = gradients.unsqueeze(-1).flatten(3)
        pieces = []
        if self.has_weight:
            X = self.normalised.movedim(-1, 1).unsqueeze(-1).flatten(2)
            pieces.append((G * X).sum(-1))
        if self.has_bias:
            pieces.append(G.sum(-1))
        return torch.cat(pieces, -1)

    def block(self, gradients: Float[Tensor, "R ..."], examples: BatchAxis, num_examples: int) -> Block:
        """Rows n × R × d for the weight, and the same for the bias."""
        if self.channels:
            summed = examples.moved(gradients, num_examples, 1, 1).sum(2)
            return Rows(summed.transpose(0, 1).contiguous(), self.parts)
        axes = self.normalised.ndim - 1
        G = examples.moved(gradients.flatten(1 + axes), num_examples, 1, axes)
        pieces = []
        if self.has_weight:
            X = examples.moved(self.normalised, num_examples, 0, axes)
            pieces.append(torch.einsum("rnld,nld->nrd", G, X))
        if self.has_bias:
            pieces.append(G.sum(2).transpose(0, 1))
        return Rows(torch.cat(pieces, -1), self.parts)


def _affine(
    weights: FlatWeights, weight: object, bias: object, normalised: Tensor, *, channels: bool, num_axes: int = 1
) -> Use | None:
    """The use of a weight and a bias, either of which may be missing or frozen."""
    places = [weights.find(tensor) for tensor in (weight, bias)]
    if any(place is None and weights.holds(tensor) for place, tensor in zip(places, (weight, bias), strict=True)):
        return None
    last = normalised.movedim(1, -1) if channels else normalised.flatten(normalised.ndim - num_axes)
    parts = tuple(place for place in places if place is not None)
    return AffineUse(parts, tuple(normalised.shape), last, channels, places[0] is not None, places[1] is not None)


@rule(F.layer_norm)
def layer_norm(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """F.layer_norm(x, shape, w, b, eps)."""
    x, shape = argument(args, kwargs, 0, "input"), argument(args, kwargs, 1, "normalized_shape")
    weight, bias = argument(args, kwargs, 2, "weight"), argument(args, kwargs, 3, "bias")
    normalised = F.layer_norm(x, shape, eps=argument(args, kwargs, 4, "eps", 1e-5))
    return _affine(weights, weight, bias, normalised, channels=False, num_axes=len(shape))


@rule(F.rms_norm)
def rms_norm(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """F.rms_norm(x, shape, w, eps)."""
    x, shape = argument(args, kwargs, 0, "input"), argument(args, kwargs, 1, "normalized_shape")
    normalised = F.rms_norm(x, shape, eps=argument(args, kwargs, 3, "eps"))
    return _affine(weights, argument(args, kwargs, 2, "weight"), None, normalised, channels=False, num_axes=len(shape))


@rule(F.group_norm)
def group_norm(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """F.group_norm(x, groups, w, b, eps)."""
    x, groups = argument(args, kwargs, 0, "input"), argument(args, kwargs, 1, "num_groups")
    weight, bias = argument(args, kwargs, 2, "weight"), argument(args, kwargs, 3, "bias")
    normalised = F.group_norm(x, groups, eps=argument(args, kwargs, 4, "eps", 1e-5))
    return _affine(weights, weight, bias, normalised, channels=True)


@rule(F.batch_norm)
def batch_norm(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """F.batch_norm(x, mean, variance, w, b, training, momentum, eps) with fixed statistics."""
    if argument(args, kwargs, 5, "training", False):
        return None
    x, mean, variance = (argument(args, kwargs, i, n) for i, n in enumerate(("input", "running_mean", "running_var")))
    weight, bias = argument(args, kwargs, 3, "weight"), argument(args, kwargs, 4, "bias")
    normalised = F.batch_norm(x, mean, variance, eps=argument(args, kwargs, 7, "eps", 1e-5))
    return _affine(weights, weight, bias, normalised, channels=True)


@form(F.batch_norm)
def fixed_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """x s + (b − m s) with s = w (σ² + ε)^{−½}, whose derivative with respect to x is one product."""
    given = [tensor for tensor in (running_mean, running_var, weight, bias) if tensor is not None]
    if training or running_mean is None or running_var is None or any(tensor.dtype != x.dtype for tensor in given):
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    scale = (running_var + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    shape = (1, -1, *(1,) * (x.ndim - 2))
    return torch.addcmul(shift.view(shape), x, scale.view(shape))


@rule(F.instance_norm)
def instance_norm(weights: FlatWeights, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Use | None:
    """F.instance_norm(x, mean, variance, w, b, use_input_stats, momentum, eps)."""
    x, mean, variance = (argument(args, kwargs, i, n) for i, n in enumerate(("input", "running_mean", "running_var")))
    weight, bias = argument(args, kwargs, 3, "weight"), argument(args, kwargs, 4, "bias")
    own, eps = argument(args, kwargs, 5, "use_input_stats", True), argument(args, kwargs, 7, "eps", 1e-5)
    if own and mean is not None:
        return None
    normalised = F.instance_norm(x, mean, variance, use_input_stats=own, eps=eps)
    return _affine(weights, weight, bias, normalised, channels=True)
