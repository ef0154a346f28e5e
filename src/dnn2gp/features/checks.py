"""Checks of the arguments of an engine's products, which users may call: cotangents, vectors and precisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.whitener import Whitener
from dnn2gp.support.errors import InputError

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


def check_vectors(vectors: object, num_weights: int) -> None:
    """Vectors v of J v: P × S."""
    if not isinstance(vectors, Tensor) or vectors.ndim != 2 or len(vectors) != num_weights:
        raise InputError(
            f"vectors: expected a P × S tensor with one vector of all {num_weights} weights in each column; got "
            f"{_described(vectors)}. For one vector, use vector.unsqueeze(-1)."
        )


def check_cotangents(cotangents: Cotangents | object, num_examples: int, num_outputs: int) -> None:
    """Cotangents u of Jᵀu, or roots S of Λ: N × Q × S, or a function of the outputs that returns them."""
    if callable(cotangents):
        return
    if (
        not isinstance(cotangents, Tensor)
        or cotangents.ndim != 3
        or cotangents.shape[:2] != (num_examples, num_outputs)
    ):
        raise InputError(
            f"cotangents: expected a tensor of shape N × Q × S = ({num_examples}, {num_outputs}, S), or a function "
            f"of the outputs; got {_described(cotangents)}. For one column, use cotangents.unsqueeze(-1)."
        )


def check_precision(precision: object) -> None:
    """A covariance of the weights, given by its precision."""
    if not isinstance(precision, Whitener):
        raise InputError(
            "precision: expected the precision of the weights, such as DiagonalPrecision(torch.full((P,), δ)); "
            f"got {_described(precision)}."
        )


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"a tensor of shape {tuple(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
