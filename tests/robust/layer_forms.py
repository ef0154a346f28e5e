"""How the layers of the network fuzzer are written: modules from N vectors of 16 numbers to N vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 16


def folded(h: Tensor) -> Tensor:
    """Any number of features as 16: padded with zeros to a multiple of 16, then averaged."""
    flat = h.flatten(1)
    flat = F.pad(flat, (0, -flat.shape[1] % WIDTH))
    return flat.unflatten(1, (-1, WIDTH)).mean(1)


class Shaped(nn.Module):
    """A module on inputs of another shape."""

    def __init__(self, inner: nn.Module, *shape: int) -> None:
        super().__init__()
        self.inner, self.shape = inner, shape

    def forward(self, h: Tensor) -> Tensor:
        found = self.inner(h.reshape(len(h), *self.shape))
        return folded(found[0] if isinstance(found, tuple) else found)


class Calls(nn.Module):
    """A function of this module and of its inputs, in another shape; the weights are attributes of the module."""

    def __init__(self, function: Callable[..., Tensor], *shape: int, **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function, self.shape = function, shape or (WIDTH,)
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))

    def forward(self, h: Tensor) -> Tensor:
        return folded(self.function(self, h.reshape(len(h), *self.shape)))


def weight(*shape: int) -> Tensor:
    """Numbers of a size that keeps a layer's outputs about as large as its inputs."""
    return torch.randn(*shape) / shape[-1] ** 0.5


def linear(inputs: int = WIDTH, outputs: int = 4, *, bias: bool = True) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias)
