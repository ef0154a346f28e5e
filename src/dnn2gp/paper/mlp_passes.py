"""Gradients of many small networks in a regression at once, by hand: sums over examples, and of their squares.

    ℓ = ½ (y − f)² / σ²,        through layer and units:  g ← (g W) (1 − a²) for tanh, (g W) (a − a²) for sigmoid

In a linear layer the gradient of one example is the outer product of g_n, that in its outputs, and of its inputs a_n:
its sum is Σ_n g_n a_nᵀ, that of its squares Σ_n g_n² (a_n²)ᵀ, and no gradient of a single example is formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.support.errors import InputError


@dataclass(frozen=True)
class Sizes:
    """The layers of a network like those of `nets.mlp`."""

    shapes: tuple[torch.Size, ...]
    """outputs × inputs of each."""
    sigmoid: bool
    """Whether its units are sigmoids; else tanh."""

    @property
    def num_weights(self) -> int:
        """P."""
        return sum(shape.numel() + shape[0] for shape in self.shapes)

    @staticmethod
    def of(network: nn.Module) -> Sizes:
        """Refuses what is no such network."""
        modules = list(network) if isinstance(network, nn.Sequential) else [network]
        linear, between = modules[::2], modules[1::2]
        shapes = [module.weight.shape for module in linear if isinstance(module, nn.Linear) and module.bias is not None]
        alike = any(all(isinstance(each, kind) for each in between) for kind in (nn.Tanh, nn.Sigmoid))
        fits = len(shapes) == len(linear) == len(between) + 1 and alike
        if not fits or any(first[0] != second[1] for first, second in pairwise(shapes)):
            raise InputError(
                "network: expected linear layers with biases and tanh, or sigmoids, between them, as mlp; got "
                f"{network}."
            )
        return Sizes(tuple(shapes), bool(between) and isinstance(between[0], nn.Sigmoid))


class Passes:
    """Forward and backward passes of b members over all their data, at S weights each."""

    def __init__(
        self,
        sizes: Sizes,
        inputs: Float[Tensor, "b N I"],
        targets: Float[Tensor, "b N K"],
        num_samples: int = 1,
        sigma: float = 1.0,
    ) -> None:
        self.sizes, self.sigma, self.members, shapes = sizes, sigma, len(inputs), sizes.shapes
        repeated, self.targets = (part.repeat_interleave(num_samples, 0) for part in (inputs, targets))
        rows = repeated.shape[:2]
        # Held from step to step: to ask the system for as much memory anew takes longer than to compute what is in it.
        self.before = [repeated, *(repeated.new_empty(*rows, shape[0]) for shape in shapes[:-1])]
        """The inputs of each layer: b·S × N × I."""
        self.before_squared = [repeated.square(), *map(torch.empty_like, self.before[1:])]
        self.back = [repeated.new_empty(*rows, shape[0]) for shape in shapes]
        """The gradient in the outputs of each layer."""
        self.back_squared = [torch.empty_like(each) for each in self.back]

    def sums(self, weights: Float[Tensor, "b S P"]) -> tuple[Float[Tensor, "b P"], Float[Tensor, "b P"]]:
        """Σ_s Σ_n of ∇ℓ_n(w_s), and of its squares."""
        layers = self._layers(weights.flatten(0, 1))
        self._forward(layers)
        gradients, squares = [], []
        for place in reversed(range(len(layers))):
            back, squared = self.back[place], self.back_squared[place]
            torch.mul(back, back, out=squared)
            gradients += [self._rows(back).sum(1), self._product(back, self.before[place])]
            squares += [self._rows(squared).sum(1), self._product(squared, self.before_squared[place])]
            self._backward(layers, place)
        return torch.cat(gradients[::-1], 1), torch.cat(squares[::-1], 1)

    def sums_of_features(self, weights: Float[Tensor, "b S P"]) -> tuple[Float[Tensor, "b P"], Float[Tensor, "b P"]]:
        """Σ_s Σ_n of ∇ℓ_n(w_s), and diag JᵀJ/σ²: one backward pass of f itself, for networks of one output."""
        layers = self._layers(weights.flatten(0, 1))
        self._forward(layers)
        residual = self.back[-1].clone()
        self.back[-1].fill_(1.0)
        gradients, squares = [], []
        for place in reversed(range(len(layers))):
            back, squared = self.back[place], self.back_squared[place]
            torch.mul(back, residual, out=squared)
            gradients += [self._rows(squared).sum(1), self._product(squared, self.before[place])]
            torch.mul(back, back, out=squared)
            squares += [self._rows(squared).sum(1), self._product(squared, self.before_squared[place])]
            self._backward(layers, place)
        return torch.cat(gradients[::-1], 1), torch.cat(squares[::-1], 1) / self.sigma**2

    def loss_and_gradient(self, weights: Float[Tensor, "b P"]) -> tuple[Float[Tensor, " b"], Float[Tensor, "b P"]]:
        """Σ_n ℓ_n(w) and its gradient, at one vector of weights each."""
        layers = self._layers(weights)
        self._forward(layers)
        loss = 0.5 * self.sigma**2 * self.back[-1].square().sum((1, 2))
        gradients = []
        for place in reversed(range(len(layers))):
            back = self.back[place]
            gradients += [self._rows(back).sum(1), self._product(back, self.before[place])]
            self._backward(layers, place)
        return loss, torch.cat(gradients[::-1], 1)

    def _forward(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Units, their squares, and the gradient in the outputs, (f − y) / σ²."""
        for place, (weight, bias) in enumerate(layers[:-1]):
            units = self.before[place + 1]
            factor = 1 if self.sizes.sigmoid else 2
            torch.baddbmm(factor * bias[:, None], self.before[place], factor * weight.mT, out=units)
            units.sigmoid_() if self.sizes.sigmoid else _tanh_of_half(units)
            torch.mul(units, units, out=self.before_squared[place + 1])
        weight, bias = layers[-1]
        torch.baddbmm(bias[:, None], self.before[-1], weight.mT, out=self.back[-1])
        self.back[-1].sub_(self.targets).div_(self.sigma**2)

    def _backward(self, layers: Sequence[tuple[Tensor, Tensor]], place: int) -> None:
        """From the outputs of a layer to those of the one before it, if there is one."""
        if place:
            back, lower, weight = self.back[place], self.back[place - 1], layers[place][0]
            product = torch.mul if weight.shape[1] == 1 else torch.bmm
            product(back, weight, out=lower)
            if self.sizes.sigmoid:
                lower.mul_(self.before[place] - self.before_squared[place])
            else:
                lower.addcmul_(lower, self.before_squared[place], value=-1)

    def _layers(self, weights: Float[Tensor, "M P"]) -> list[tuple[Tensor, Tensor]]:
        """Views of the flat weights as each layer's matrix and bias."""
        sizes = [size for shape in self.sizes.shapes for size in (shape.numel(), shape[0])]
        parts = weights.split(sizes, 1)
        pairs = zip(self.sizes.shapes, parts[::2], parts[1::2], strict=True)
        return [(matrix.unflatten(1, shape), bias) for shape, matrix, bias in pairs]

    def _rows(self, values: Float[Tensor, "M N H"]) -> Float[Tensor, "b SN H"]:
        """The samples and examples of one member after another."""
        return values.view(self.members, -1, values.shape[2])

    def _product(self, back: Float[Tensor, "M N O"], before: Float[Tensor, "M N I"]) -> Float[Tensor, "b OI"]:
        """Σ_s Σ_n g_n a_nᵀ, flat; the narrower of the two comes first, which is several times as fast."""
        g, a = self._rows(back), self._rows(before)
        product = g.mT @ a if g.shape[2] < a.shape[2] else (a.mT @ g).mT
        return product.flatten(1)


def _tanh_of_half(doubled: Float[Tensor, "M N H"]) -> None:
    """2z → tanh z = 2 / (1 + e^{−2z}) − 1, in place: in a third of the time that torch's tanh takes."""
    doubled.sigmoid_().mul_(2).sub_(1)
