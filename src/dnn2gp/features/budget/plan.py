"""A plan: what a product will need before it is computed, and into which chunks it is cut to stay within the budget."""

from __future__ import annotations

from dataclasses import dataclass

from dnn2gp.support.memory import readable


@dataclass(frozen=True)
class Plan:
    """The work ahead: examples at a time, the most memory held at once (result included), and operations."""

    work: str
    num_examples: int
    chunk: int
    """Examples at a time."""
    held: int
    """Examples whose factors are held at once, so that they are made only once; fewer means making them again."""
    bytes: int
    """The peak of memory above what the process has now."""
    result_bytes: int
    """Of these, the result."""
    operations: float
    budget: int

    def __str__(self) -> str:
        """One line for people."""
        chunks = -(-self.num_examples // self.chunk)
        return (
            f"{self.work} of {self.num_examples} examples: {chunks} chunks of {self.chunk}, "
            f"{readable(self.bytes)} of the budget of {readable(self.budget)} (result {readable(self.result_bytes)}), "
            f"{self.operations:.2g} operations"
        )
