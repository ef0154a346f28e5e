"""The only Cholesky factorisation of the package: in float64, without jitter; errors give the eigenvalues."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.support.errors import NotPositiveDefiniteError


def cholesky(matrix: Float[Tensor, "M M"], what: str, instead: str) -> Float[Tensor, "M M"]:
    """L with L Lᵀ = matrix, in float64. `what` names the matrix; `instead` says what to change if it fails."""
    matrix = matrix.double()
    if not matrix.isfinite().all():
        raise NotPositiveDefiniteError(f"{what} contains NaN or infinity. {instead}")
    factor, info = torch.linalg.cholesky_ex(matrix)
    if info.item() != 0:
        eigenvalues = torch.linalg.eigvalsh(matrix)
        raise NotPositiveDefiniteError(
            f"{what} ({len(matrix)} × {len(matrix)}) is not positive definite: its eigenvalues range from "
            f"{eigenvalues[0].item():.3g} to {eigenvalues[-1].item():.3g}. {instead}"
        )
    return factor
