"""The cost of inference, known before it is done."""

from __future__ import annotations

from dataclasses import dataclass

from dnn2gp.support.memory import readable


@dataclass(frozen=True)
class Cost:
    """The cost of one way of inference: the side of its matrix, the number of operations, and the memory in bytes."""

    space: str
    """The name of the inference."""
    size: int
    operations: float
    bytes: int

    def __str__(self) -> str:
        """One line: "weight space: a 17 × 17 matrix, 7e+03 operations, 6.94 kB"."""
        matrix = f"a {self.size} × {self.size} matrix"
        return f"{self.space}: {matrix}, {self.operations:.2g} operations, {readable(self.bytes)}"
