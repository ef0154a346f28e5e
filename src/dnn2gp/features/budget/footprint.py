"""What one example costs an engine: the bytes that it holds, and the operations that make them."""

from __future__ import annotations

from dataclasses import dataclass

from dnn2gp.features.budget.size import BlockSize


@dataclass(frozen=True)
class Footprint:
    """Bytes of one example with R rows, in the dtype of the weights; what making them needs is measured (`peak.py`)."""

    factors: int
    """Of the factors, in the form that is kept."""
    rows: int
    """Of its R rows of the Jacobian, R · P numbers."""
    operations: float
    """Multiplications and additions to make the factors."""
    blocks: tuple[BlockSize, ...] = ()
    """Of its blocks, where products hold more than these."""
