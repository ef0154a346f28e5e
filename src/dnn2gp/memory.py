"""The memory budget: how many examples a chunk may hold, and a clear error where not even one fits."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from dnn2gp.errors import MemoryBudgetError


def default_budget() -> int:
    """Half of the memory that is free now, in bytes."""
    return psutil.virtual_memory().available // 2


def readable(num_bytes: float) -> str:
    """A size in words, e.g. 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def require(num_bytes: int, budget: int, what: str, instead: str) -> None:
    """Raise a MemoryBudgetError unless `num_bytes` fit into `budget`; `instead` says what else can be done."""
    if num_bytes > budget:
        raise MemoryBudgetError(
            f"{what} needs {readable(num_bytes)}, more than the memory budget of {readable(budget)}. {instead}"
        )


def chunk_size(num_examples: int, bytes_per_example: int, budget: int, what: str) -> int:
    """The most examples at a time that fit into the budget."""
    require(
        bytes_per_example,
        budget,
        f"{what} of a single example",
        "Raise memory_budget, freeze layers that need no uncertainty (requires_grad_(False)), or use fewer outputs.",
    )
    return max(1, min(num_examples, budget // max(1, bytes_per_example)))


def chunks(num_examples: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most `size` that cover 0 … N−1."""
    for start in range(0, num_examples, size):
        yield slice(start, min(start + size, num_examples))
