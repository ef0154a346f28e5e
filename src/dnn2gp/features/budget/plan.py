"""A plan: what a product needs before it is computed, and the chunks that keep it within the budget."""

from __future__ import annotations

from dataclasses import dataclass

from dnn2gp.support.memory import readable


@dataclass(frozen=True)
class Plan:
    """The cost of a product: examples at a time, peak memory (including the result), and operations."""

    work: str
    num_examples: int
    chunk: int
    """Examples at a time."""
    held: int
    """Examples whose factors are in memory at once; those of further examples are computed several times."""
    bytes: int
    """The peak of what torch allocates in addition."""
    result_bytes: int
    """The part of these that is the result."""
    operations: float
    budget: int

    def __str__(self) -> str:
        chunks = -(-self.num_examples // self.chunk)
        return (
            f"{self.work} of {self.num_examples} examples: {chunks} chunks of {self.chunk}, "
            f"{readable(self.bytes)} of the budget of {readable(self.budget)} (result {readable(self.result_bytes)}), "
            f"{self.operations:.2g} operations"
        )
