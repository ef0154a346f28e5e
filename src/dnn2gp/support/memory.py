"""The memory budget in bytes, and an error that states the sizes when something does not fit into it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import psutil

from dnn2gp.support.errors import InputError, MemoryBudgetError


def default_budget() -> int:
    """Half of the memory that is free now, in bytes, within the limit of a container if there is one."""
    return min(psutil.virtual_memory().available, _container_limit()) // 2


def _container_limit(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory that a Linux control group still allows, if it sets a limit."""
    try:
        limit, used, stat = ((folder / f"memory.{name}").read_text() for name in ("max", "current", "stat"))
    except OSError:
        return sys.maxsize
    if limit.strip() == "max":
        return sys.maxsize
    counts = dict(line.split() for line in stat.splitlines())
    reclaimable = int(counts.get("inactive_file", 0))  # cached files, which the system frees on demand
    return max(0, int(limit) - int(used) + reclaimable)


def check_budget(memory_budget: object) -> int | None:
    """The user's budget as an integer (4e9 is accepted), or None for half of the free memory."""
    if memory_budget is None:
        return None
    if isinstance(memory_budget, int | float) and memory_budget is not True and 1 <= memory_budget <= sys.maxsize:
        return int(memory_budget)
    raise InputError(
        f"memory_budget: expected a positive number of bytes, e.g. 4e9 for 4 GB; got {memory_budget!r}. Leave it out "
        "to use half of the memory that is free."
    )


def room(budget: int, counted: int = 0) -> int:
    """The part of the budget that plans may use.

    Libraries for matrix products have buffers of their own, and the process may have grown by more bytes than are held
    or `counted`: a library for convolutions keeps the code that it has generated for each batch size.
    """
    uncounted = max(0, _growth() - counted)
    return budget - min(_LIBRARIES + uncounted, budget // 2)


_LIBRARIES = 12 << 20
SMALL = 1 << 20
"""What is smaller is not counted: the part of the budget that plans leave to libraries covers it."""
_held: ContextVar[int] = ContextVar("dnn2gp_held", default=0)
# The resident memory when work with a small budget began, less what was held already.
_start: ContextVar[int | None] = ContextVar("dnn2gp_start", default=None)


@contextmanager
def counting_growth() -> Iterator[None]:
    """A context in which plans count everything that the process has allocated since it was entered; it may be nested.

    This is for small budgets: whatever else happens in the process counts as well.
    """
    token = _start.set(resident() - _held.get() if _start.get() is None else _start.get())
    try:
        yield
    finally:
        _start.reset(token)


def resident() -> int:
    """The resident memory of this process."""
    return psutil.Process().memory_info().rss


def _growth() -> int:
    """The growth of the resident memory beyond what is held."""
    start = _start.get()
    return 0 if start is None else resident() - start - _held.get()


@contextmanager
def holding(num_bytes: int) -> Iterator[None]:
    """A context in which so many bytes of the budget are taken: copies of the data, or results of earlier steps."""
    token = _held.set(_held.get() + (num_bytes if num_bytes > SMALL else 0))
    try:
        yield
    finally:
        _held.reset(token)


def held() -> int:
    """The bytes of the budget that are taken by what surrounds this call."""
    return _held.get()


def readable(num_bytes: int | float) -> str:
    """A size for messages, e.g. 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def require(num_bytes: int, budget: int, what: str, instead: str) -> None:
    """Raise a MemoryBudgetError unless `num_bytes` fit into `budget`; `instead` says what else can be done."""
    if num_bytes > budget:
        beside = f", of which {readable(held())} are taken by the data and earlier results" if held() else ""
        raise MemoryBudgetError(
            f"{what} needs {readable(num_bytes)}, more than the memory budget of {readable(budget + held())}{beside}. "
            f"{instead} Or raise memory_budget if the machine has enough memory."
        )


def chunks(num_examples: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most `size` that cover 0 … N−1."""
    for start in range(0, num_examples, size):
        yield slice(start, min(start + size, num_examples))


def even_chunks(num_examples: int, size: int) -> Iterator[slice]:
    """As few consecutive slices of at most `size` as cover 0 … N−1, of nearly equal length."""
    return chunks(num_examples, -(-num_examples // max(1, -(-num_examples // size))))
