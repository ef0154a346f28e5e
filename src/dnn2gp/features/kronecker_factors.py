"""Kronecker factors of the GGN of each layer (KFAC), with the exact root of Λ in place of sampled labels.

For a layer with inputs a_l and output gradients g_rl at L positions (r counts the columns of the root S of Λ),

    Σₙ Jᵀ Λ J  ≈  A ⊗ G ,      A = Σ_{n,l} a aᵀ ,      G = Σ_{n,r,l} g gᵀ / (N L) .

It is exact for one example at one position, and for a linear layer whose output gradients do not change with n.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.blocks import Block, Lookup, Outer
from dnn2gp.features.factors import Factors
from dnn2gp.support.processes import ALONE, Team


@dataclass(eq=False)
class KroneckerFactors:
    """A (i × i, or its diagonal) and G (o × o) of one block; weights lie as o × i, or `transposed` as i × o.

    The bias of a layer is the last of the i inputs. A block that is not an outer product (such as the weights of a
    normalisation) has A = 1 and its whole GGN as G.
    """

    parts: tuple[slice, ...]
    A: Float[Tensor, "i i"] | Float[Tensor, " i"]
    G: Float[Tensor, "o o"]
    transposed: bool = False
    bias: bool = False


def kronecker_sums(factors: Factors) -> list[tuple[KroneckerFactors, int]]:
    """The sums over a chunk of examples for each layer, and their numbers of pairs of example and position."""
    return [_of_block(block) for block in factors.blocks]


def kronecker_factors(
    chunks: Iterable[list[tuple[KroneckerFactors, int]]], team: Team = ALONE
) -> list[KroneckerFactors]:
    """The factors of all layers, from the sums of all chunks of all processes."""
    sums: list[KroneckerFactors] = []
    shares: list[int] = []
    for found in chunks:
        if not sums:
            sums, shares = [factors for factors, _ in found], [count for _, count in found]
            continue
        for index, (factors, count) in enumerate(found):
            sums[index].A += factors.A if shares[index] else 0  # A = 1 where the block is dense
            sums[index].G += factors.G
            shares[index] += count
    if team.size > 1:
        shares = _summed(team, sums, shares)
    for factors, count in zip(sums, shares, strict=True):
        factors.G /= max(1, count)
    return sums


def _summed(team: Team, sums: list[KroneckerFactors], shares: list[int]) -> list[int]:
    """Sum A, G (both in place) and the numbers of pairs over the processes in one exchange; return these numbers."""
    parts = [
        part for each, count in zip(sums, shares, strict=True) for part in ([each.A, each.G] if count else [each.G])
    ]
    counts = sums[0].G.new_tensor(shares)
    total = team.sum(torch.cat([*(part.flatten() for part in parts), counts]))
    *found, counts = total.split([*(part.numel() for part in parts), len(shares)])
    for part, value in zip(parts, found, strict=True):
        part.copy_(value.reshape(part.shape))
    return [int(count) for count in counts.tolist()]


def _of_block(block: Block) -> tuple[KroneckerFactors, int]:
    """The sums over the examples, and their number of pairs of example and position (0: G is not divided)."""
    if isinstance(block, Outer):
        factors = KroneckerFactors(
            block.parts,
            _gram(block.A).double(),
            _gram(block.G.flatten(0, 1)).double(),
            block.arrangement.transposed,
            block.arrangement.bias,
        )
        return factors, block.num_examples * block.num_positions
    if isinstance(block, Lookup):
        counts = torch.bincount(block.index.flatten(), minlength=block.num_entries).double()
        gradients = block.G.flatten(0, 2)
        factors = KroneckerFactors(block.parts, counts, (gradients.T @ gradients).double(), transposed=True)
        return factors, block.index.numel()
    rows = block.rows().flatten(0, 1)
    one = torch.ones(1, dtype=torch.float64, device=rows.device)
    return KroneckerFactors(block.parts, one, (rows.T @ rows).double()), 0


def _gram(values: Float[Tensor, "n d L"]) -> Float[Tensor, "d d"]:
    """Σ v vᵀ over examples and positions: one product of all of them, or the sum of one product per example."""
    _, d, L = values.shape
    if L == 1:
        flat = values.squeeze(2)
        return flat.T @ flat
    if d > L:
        flat = values.transpose(0, 1).flatten(1)
        return flat @ flat.T
    return (values @ values.mT).sum(0)
