"""Images that are no digits as the network knows them: digits turned by 90°, and pieces of photographs."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn.functional import avg_pool2d

_SIZE = 32
"""Pixels along each side of a piece, which is reduced to 8 × 8."""


def turned(images: Float[Tensor, "N 1 8 8"]) -> Float[Tensor, "N 1 8 8"]:
    """The images turned by 90°."""
    return images.rot90(1, dims=(2, 3))


def photographs(count: int, generator: torch.Generator) -> Float[Tensor, "N 1 8 8"]:
    """Random pieces of the two photographs that come with scikit-learn, in grey from 0 to 1."""
    pictures = [torch.from_numpy(np.array(own, dtype=np.float64)).mean(2) for own in load_sample_images().images]
    pieces = []
    for number in range(count):
        picture = pictures[number % len(pictures)]
        row, column = (int(torch.randint(size - _SIZE, (), generator=generator)) for size in picture.shape)
        piece = avg_pool2d(picture[None, row : row + _SIZE, column : column + _SIZE], _SIZE // 8)
        pieces.append((piece - piece.min()) / (piece.max() - piece.min()).clamp(min=1.0))
    return torch.stack(pieces)
