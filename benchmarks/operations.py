"""Floating-point operations that a quantity of LeNet-5 needs, counted on paper.

A multiply-add is two operations. A symmetric kernel counts one triangle. Non-linearities, pooling and sums of lower
order are left out. Per layer, with N examples, K outputs, D_in inputs and D_out outputs of a Linear, and a convolution
of C channels to O with kernels of side s at L positions, which is a matrix product of C s² to O at each position:

    forward     2 N D_in D_out                            2 N L O C s²
    backward    K times as much for the cotangents of the layer's inputs; none for the first layer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A Linear (positions = 1) or convolution, as a matrix of fan_in × fan_out used at each position."""

    fan_in: int
    fan_out: int
    positions: int = 1

    @property
    def convolution(self) -> bool:
        """Whether the weights are shared between positions."""
        return self.positions > 1


def lenet5_layers(num_outputs: int) -> list[Layer]:
    """LeNet-5 for 28 × 28 images: 24 × 24 and 8 × 8 positions, then 256 → 120 → 84 → K."""
    return [
        Layer(1 * 25, 6, 24 * 24),
        Layer(6 * 25, 16, 8 * 8),
        Layer(256, 120),
        Layer(120, 84),
        Layer(84, num_outputs),
    ]


def passes(layers: Sequence[Layer], num_examples: int, num_cotangents: int) -> float:
    """One forward pass and `num_cotangents` backward passes for the cotangents of each layer's outputs."""
    costs = [2.0 * num_examples * layer.positions * layer.fan_in * layer.fan_out for layer in layers]
    return sum(costs) + num_cotangents * sum(costs[1:])


def convolution_rows(layer: Layer, num_rows: int) -> float:
    """∂f/∂W of a convolution, written out: a product over positions, O × L by L × C s², for each row."""
    return 2.0 * num_rows * layer.positions * layer.fan_in * layer.fan_out


def full_kernel(layers: Sequence[Layer], num_examples: int, num_outputs: int) -> float:
    """J Jᵀ, one triangle.

    Linear       Gram of the inputs  2 · N²/2 · D_in,  of the cotangents  2 · (N K)²/2 · D_out (none for the last layer,
                 whose cotangents are unit vectors),  and their product and sum  2 · (N K)²/2
    convolution  its rows  2 N K L O C s²,  and their Gram  2 · (N K)²/2 · O (C s² + 1)
    """
    rows = num_examples * num_outputs
    total = passes(layers, num_examples, num_outputs)
    for layer in layers:
        if layer.convolution:
            total += convolution_rows(layer, rows) + float(rows) ** 2 * layer.fan_out * (layer.fan_in + 1)
        else:
            cotangents = 0 if layer is layers[-1] else layer.fan_out
            total += float(num_examples) ** 2 * layer.fan_in + float(rows) ** 2 * (cotangents + 1)
    return total


def trace_kernel(layers: Sequence[Layer], num_examples: int, num_outputs: int) -> float:
    """Σ_k [J Jᵀ]_kk, one triangle: as the full kernel, with N² K in the place of (N K)²."""
    total = passes(layers, num_examples, num_outputs)
    pairs = float(num_examples) ** 2
    for layer in layers:
        if layer.convolution:
            rows = convolution_rows(layer, num_examples * num_outputs)
            total += rows + pairs * num_outputs * layer.fan_out * (layer.fan_in + 1)
        else:
            cotangents = 0 if layer is layers[-1] else num_outputs * layer.fan_out
            total += pairs * (layer.fan_in + cotangents + 1)
    return total


def ggn_diagonal(layers: Sequence[Layer], num_examples: int, num_outputs: int) -> float:
    """diag(Jᵀ Λ J) of a softmax, Λ = S Sᵀ with R = K − 1 columns: R backward passes.

    Linear       squares of the cotangents summed over R  2 N R D_out,  times squares of the inputs  2 N D_in D_out
    convolution  its rows  2 N R L O C s²,  their squares and sum  2 N R O (C s² + 1)
    """
    rank = num_outputs - 1
    rows = num_examples * rank
    total = passes(layers, num_examples, rank)
    for layer in layers:
        if layer.convolution:
            total += convolution_rows(layer, rows) + 2.0 * rows * layer.fan_out * (layer.fan_in + 1)
        else:
            total += 2.0 * rows * layer.fan_out + 2.0 * num_examples * layer.fan_in * layer.fan_out
    return total
