"""What one example costs an engine: the bytes that it holds, and the operations that make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Footprint:
    """Bytes of one example with R rows, in the dtype of the weights; what making them needs is measured (`peak.py`)."""

    factors: int
    """Of the factors, in the form that is kept."""
    rows: int
    """Of its R rows of the Jacobian, R · P numbers."""
    products: Callable[[int], int]
    """Of what a product of n examples with others forms besides, as a function of n."""
    operations: float
    """Multiplications and additions to make the factors."""
