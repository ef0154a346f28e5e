"""The factorisations of the package: Cholesky in float64, without jitter; and QR, row block by row block."""

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


def cholesky_solve(factor: Float[Tensor, "M M"], right: Float[Tensor, "M S"]) -> Float[Tensor, "M S"]:
    """L⁻ᵀ L⁻¹ b. `torch.cholesky_solve` would copy L in every call, which takes longer than to solve for one b."""
    return torch.linalg.solve_triangular(
        factor.mT, torch.linalg.solve_triangular(factor, right, upper=False), upper=True
    )


def triangle(rows: Float[Tensor, "m n"]) -> Float[Tensor, "n n"]:
    """The upper triangular R with RᵀR = BᵀB and a diagonal ≥ 0, of rows B with m ≥ n: their QR decomposition.

    BᵀB is never formed, which would square the condition number of B.
    """
    found = torch.linalg.qr(rows, mode="r").R
    return found * torch.where(found.diagonal() < 0, -1.0, 1.0).to(found.dtype)[:, None]
