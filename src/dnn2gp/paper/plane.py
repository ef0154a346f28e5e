"""A grid of points over the plane, for maps of two-dimensional inputs."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def plane_grid(
    extent: tuple[float, float, float, float], resolution: int
) -> tuple[Float[Tensor, " W"], Float[Tensor, " H"], Float[Tensor, "HW 2"]]:
    """The coordinates along both sides of (left, right, low, high), and all points of the grid, row by row."""
    left, right, low, high = extent
    x, y = (torch.linspace(*ends, resolution, dtype=torch.float64) for ends in ((left, right), (low, high)))
    return x, y, torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)
