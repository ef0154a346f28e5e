"""Checksums: one number per example, which changes if the example does."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from dnn2gp.network.inputs import Inputs, OnDemand, leaves, num_examples

# The integers of 1 to 8 bytes as which an example is read.
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
# The number of examples at a time: integers of one byte are widened to eight.
_ROWS = 64


def checksums(inputs: Inputs) -> Int[Tensor, " N"]:
    """Σ_j a_j b_j modulo 2⁶⁴ for each example, where b are its bytes read as integers, and a are fixed odd numbers.

    An odd number has an inverse modulo 2⁶⁴, so every change of a single integer changes the sum; other changes are
    missed with a probability of about 2⁻⁶⁴.
    """
    if isinstance(inputs, OnDemand):
        return inputs.checksums
    total = torch.zeros(num_examples(inputs), dtype=torch.int64)
    for leaf in leaves(inputs):
        total = 3 * total + _of_leaf(leaf.detach().cpu())
    return total


def _of_leaf(leaf: Tensor) -> Int[Tensor, " N"]:
    count = len(leaf)
    flat = leaf.contiguous().reshape(count, -1)
    size = flat.shape[1] * flat.element_size()
    if size == 0:
        return torch.zeros(count, dtype=torch.int64)
    word = next(width for width in _WORDS if size % width == 0)
    if flat.storage_offset() * flat.element_size() % word:
        flat = flat.clone()
    words, factors = flat.reshape(-1).view(_WORDS[word]).reshape(count, -1), _factors(size // word)
    return torch.cat([rows.long() @ factors for rows in words.split(_ROWS)])


@lru_cache(maxsize=16)
def _factors(count: int) -> Int[Tensor, " n"]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-(2**62), 2**62, (count,), generator=generator) * 2 + 1
