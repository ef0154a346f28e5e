"""Kernels as correlations."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def correlations(kernel: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """The correlations ρ = κ(x, x′) / √(κ(x, x) κ(x′, x′)), symmetric and in [−1, 1]; 0 where κ(x, x) ≤ 0."""
    exact = kernel.astype(np.float64)
    diagonal = np.diagonal(exact)
    root = np.sqrt(np.where(diagonal > 0, diagonal, np.inf))
    scaled = exact / root[:, None] / root[None, :]
    return np.clip((scaled + scaled.T) / 2, -1, 1)
