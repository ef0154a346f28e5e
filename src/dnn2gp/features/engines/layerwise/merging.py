"""A weight that is used several times: the Jacobians of its uses are summed into one block."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dnn2gp.features.blocks import Block, Lookup, Outer, Rows


def merged(blocks: Sequence[Block]) -> list[Block]:
    """Blocks that do not overlap, in the order of w, each the sum of the given blocks that share weights."""
    groups: list[list[Block]] = []
    for block in blocks:
        touching = [group for group in groups if any(_overlap(block, other) for other in group)]
        groups = [group for group in groups if group not in touching]
        groups.append([other for group in touching for other in group] + [block])
    return [_sum(group) for group in sorted(groups, key=lambda group: group[0].parts[0].start)]


def _overlap(left: Block, right: Block) -> bool:
    return any(a.start < b.stop and b.start < a.stop for a in left.parts for b in right.parts)


def _sum(group: list[Block]) -> Block:
    """The sum of the uses: outer products or lookups with more positions, otherwise a sum of rows."""
    first = group[0]
    if len(group) == 1:
        return first
    if all(block.parts == first.parts for block in group):
        outers = [block for block in group if isinstance(block, Outer)]
        if len(outers) == len(group) and all(
            block.arrangement.transposed == outers[0].arrangement.transposed for block in outers
        ):
            factors = torch.cat([o.A for o in outers], 2), torch.cat([o.G for o in outers], 3)
            return outers[0].with_factors(*factors)
        lookups = [block for block in group if isinstance(block, Lookup)]
        if len(lookups) == len(group):
            index, G = torch.cat([block.index for block in lookups], 1), torch.cat([block.G for block in lookups], 2)
            return Lookup(index, G, first.parts, lookups[0].num_entries)
    return _summed_rows(group)


def _summed_rows(group: list[Block]) -> Rows:
    parts = _union([part for block in group for part in block.parts])
    starts, place = {}, 0
    for part in parts:
        starts[part.start] = place
        place += part.stop - part.start
    first = group[0]
    total = first.tensors()[-1].new_zeros(first.num_examples, first.num_rows, place)
    for block in group:
        for part, piece in zip(
            block.parts, block.rows().split([p.stop - p.start for p in block.parts], -1), strict=True
        ):
            home = next(whole for whole in parts if whole.start <= part.start < whole.stop)
            start = starts[home.start] + part.start - home.start
            total[..., start : start + part.stop - part.start] += piece
    return Rows(total, parts)


def _union(parts: list[slice]) -> tuple[slice, ...]:
    """The sorted union of these ranges."""
    result: list[slice] = []
    for part in sorted(parts, key=lambda part: part.start):
        if result and part.start < result[-1].stop:
            result[-1] = slice(result[-1].start, max(result[-1].stop, part.stop))
        else:
            result.append(part)
    return tuple(result)
