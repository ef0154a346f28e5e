"""Multi-layer perceptrons: the networks of the paper's regressions, of the estimators and of the command line."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from dnn2gp.support.errors import InputError

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def mlp(inputs: int, outputs: int, *, width: int = 20, depth: int = 1, activation: str = "tanh") -> nn.Sequential:
    """`depth` hidden layers of `width` units and a linear output layer."""
    if inputs < 1 or outputs < 1 or width < 1 or depth < 0:
        raise InputError(
            f"mlp: expected inputs, outputs and width ≥ 1 and depth ≥ 0; got {inputs}, {outputs}, {width} and {depth}."
        )
    if activation not in ACTIVATIONS:
        raise InputError(f"activation: expected one of {', '.join(ACTIVATIONS)}; got {activation!r}.")
    layers: list[nn.Module] = []
    sizes = [inputs, *[width] * depth]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
