"""Cotangents: the columns U of UᵀJ, as a tensor or as a function of the network's outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Cotangents: TypeAlias = "Tensor | Callable[[Tensor], Tensor]"
"""N × K × R, or a function from outputs N × K to that."""


def resolved(cotangents: Cotangents, outputs: Float[Tensor, "N K"]) -> Float[Tensor, "N K R"]:
    """The columns, in the dtype of the outputs."""
    columns = cotangents if isinstance(cotangents, Tensor) else cotangents(outputs.detach())
    return columns.to(outputs.dtype)


def identity(outputs: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
    """The columns of the identity, so that UᵀJ = J."""
    eye = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
    return eye.expand(len(outputs), -1, -1)
