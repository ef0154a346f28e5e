"""Losses and gradients of many tanh networks in a regression at once, by hand: sums over examples, and of squares.

    ℓ = ½ (y − f)² / σ²,        backwards through a layer and its units:  g ← (g W) (1 − a²)

In a linear layer the gradient of one example is the outer product of g_n, the gradient in its outputs, and its inputs
a_n. So the sum of the gradients is Σ_n g_n a_nᵀ and the sum of their squares Σ_n g_n² (a_n²)ᵀ, and no gradient of a
single example is formed. This is a fast path for the curves of Figs. 5 and 6, five times as fast as torch.func's vmap.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.support.errors import InputError


@dataclass(frozen=True)
class LayerSizes:
    """outputs × inputs of each linear layer of a network made by `mlp` with tanh units."""

    shapes: tuple[torch.Size, ...]

    @property
    def num_weights(self) -> int:
        """P."""
        return sum(shape.numel() + shape[0] for shape in self.shapes)

    @staticmethod
    def of(network: nn.Module) -> LayerSizes:
        """The sizes of a network; any other kind of network is refused."""
        modules = list(network) if isinstance(network, nn.Sequential) else [network]
        linear, between = modules[::2], modules[1::2]
        shapes = [module.weight.shape for module in linear if isinstance(module, nn.Linear) and module.bias is not None]
        fits = len(shapes) == len(linear) == len(between) + 1 and all(isinstance(each, nn.Tanh) for each in between)
        if not fits or any(first[0] != second[1] for first, second in pairwise(shapes)):
            raise InputError(f"network: expected linear layers with biases and tanh between them; got {network}.")
        return LayerSizes(tuple(shapes))


class Passes:
    """Forward and backward passes of b members over all their data, with S weight vectors per member."""

    def __init__(
        self,
        sizes: LayerSizes,
        inputs: Float[Tensor, "b N I"],
        targets: Float[Tensor, "b N K"],
        num_samples: int = 1,
        sigma: float = 1.0,
    ) -> None:
        self.sizes, self.sigma, self.members, shapes = sizes, sigma, len(inputs), sizes.shapes
        repeated, self.targets = (part.repeat_interleave(num_samples, 0) for part in (inputs, targets))
        rows = repeated.shape[:2]
        # Buffers are reused from step to step: allocating new ones takes longer than the computation.
        self.before = [repeated, *(repeated.new_empty(*rows, shape[0]) for shape in shapes[:-1])]
        """The inputs of each layer: b·S × N × I."""
        self.before_squared = [repeated.square(), *map(torch.empty_like, self.before[1:])]
        self.back = [repeated.new_empty(*rows, shape[0]) for shape in shapes]
        """The gradient in the outputs of each layer."""
        self.back_squared = [torch.empty_like(each) for each in self.back]

    def loss(self, weights: Float[Tensor, "b S P"]) -> Float[Tensor, " b"]:
        """Σ_s Σ_n ℓ_n(w_s), by a forward pass that `gradient` and `squares` go back from."""
        self._weights = self._layers(weights.flatten(0, 1))
        for place, (weight, bias) in enumerate(self._weights[:-1]):
            units = self.before[place + 1]
            # tanh z = 2 / (1 + e^{−2z}) − 1 takes a third of the time of torch's tanh
            torch.baddbmm(2 * bias[:, None], self.before[place], 2 * weight.mT, out=units).sigmoid_().mul_(2).sub_(1)
            torch.mul(units, units, out=self.before_squared[place + 1])
        weight, bias = self._weights[-1]
        torch.baddbmm(bias[:, None], self.before[-1], weight.mT, out=self.back[-1])
        self.back[-1].sub_(self.targets).div_(self.sigma**2)
        return 0.5 * self.sigma**2 * self._rows(self.back[-1]).square().sum((1, 2))

    def gradient(self) -> Float[Tensor, "b P"]:
        """Σ_s Σ_n ∇ℓ_n(w_s), at the weights of the last forward pass."""
        for place in reversed(range(1, len(self.back))):
            weight, lower = self._weights[place][0], self.back[place - 1]
            product = torch.mul if weight.shape[1] == 1 else torch.bmm
            product(self.back[place], weight, out=lower)
            lower.addcmul_(lower, self.before_squared[place], value=-1)
        return self._sums(self.back, self.before)

    def squares(self) -> Float[Tensor, "b P"]:
        """Σ_s Σ_n (∇ℓ_n(w_s))², after `gradient`."""
        for back, squared in zip(self.back, self.back_squared, strict=True):
            torch.mul(back, back, out=squared)
        return self._sums(self.back_squared, self.before_squared)

    def _sums(self, back: list[Tensor], before: list[Tensor]) -> Float[Tensor, "b P"]:
        """Σ_s Σ_n g_n a_nᵀ and Σ_s Σ_n g_n of all layers, flat."""
        parts = []
        for g, a in zip(map(self._rows, back), map(self._rows, before), strict=True):
            # the narrower factor first, which is several times as fast
            product = g.mT @ a if g.shape[2] < a.shape[2] else (a.mT @ g).mT
            parts += [product.flatten(1), g.sum(1)]
        return torch.cat(parts, 1)

    def _layers(self, weights: Float[Tensor, "M P"]) -> list[tuple[Tensor, Tensor]]:
        """The matrix and bias of each layer, as views of the flat weights."""
        sizes = [size for shape in self.sizes.shapes for size in (shape.numel(), shape[0])]
        parts = weights.split(sizes, 1)
        pairs = zip(self.sizes.shapes, parts[::2], parts[1::2], strict=True)
        return [(matrix.unflatten(1, shape), bias) for shape, matrix, bias in pairs]

    def _rows(self, values: Float[Tensor, "M N H"]) -> Float[Tensor, "b SN H"]:
        """Samples and examples of each member in one dimension."""
        return values.view(self.members, -1, values.shape[2])
