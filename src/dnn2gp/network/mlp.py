"""Multi-layer perceptrons: the networks of the paper's regressions, of the estimators and of the command line."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import whole_number

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def mlp(inputs: int, outputs: int, *, width: int = 20, depth: int = 1, activation: str = "tanh") -> nn.Sequential:
    """`depth` hidden layers of `width` units and a linear output layer."""
    inputs, outputs, width = (
        whole_number(name, size) for name, size in (("inputs", inputs), ("outputs", outputs), ("width", width))
    )
    depth = whole_number("depth", depth, 0)
    if activation not in ACTIVATIONS:
        raise InputError(f"activation: expected one of {', '.join(ACTIVATIONS)}; got {activation!r}.")
    layers: list[nn.Module] = []
    sizes = [inputs, *[width] * depth]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
