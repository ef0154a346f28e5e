"""How the C library keeps memory that was freed, which a small memory budget cannot afford.

malloc takes small blocks from a heap and maps large ones one by one, so that they return to the system once they are
freed. With glibc, the limit between the two grows up to 32 MiB as large blocks are freed. Most tensors then come from
the heap, where a freed block is used again only for what fits into it: in the backward pass of a transformer, the
process grew to 2.1 times what was ever alive at once. While work with a small budget goes on, the limit is a small
share of the budget.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import TypeVar

from dnn2gp.support.memory import counting_growth, resident

T = TypeVar("T")
# malloc keeps up to about 64 MiB of freed memory, which is too much of a budget smaller than this.
_TIGHT = 1 << 30
# The share of a small budget that freed memory may have between two chunks: page faults cost time.
_MOST = 0.5
# Blocks from this share of a small budget on are mapped one by one, but none that are smaller than so many bytes.
_MAPPED, _FEWEST = 256, 128 << 10
# The numbers of these settings in malloc.h, and the values that glibc reaches by itself in a process with large blocks.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_USUAL = {_MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}
_lock = Lock()
_users = 0


def give_back(budget: int) -> None:
    """Return freed memory to the system before work with a small budget; with glibc, which would keep some of it."""
    if budget < _TIGHT:
        _library("malloc_trim")(0)


def sparing(parts: Iterable[T], budget: int) -> Iterator[T]:
    """The parts of work with this budget; if it is small, freed memory returns to the system while they are in use."""
    if budget >= _TIGHT:
        yield from parts
        return
    start = resident()
    with returning_blocks(budget):
        for part in parts:
            if resident() - start > _MOST * budget:
                give_back(budget)
            yield part
    give_back(budget)  # what follows, such as a factorisation, counts on all of it


@contextmanager
def within(budget: int) -> Iterator[None]:
    """A context for several steps that share this budget: if it is small, plans count all growth of the process."""
    if budget >= _TIGHT:
        yield
        return
    give_back(budget)  # memory that is only kept for later is not growth
    with counting_growth(), returning_blocks(budget):
        yield


@contextmanager
def returning_blocks(budget: int) -> Iterator[None]:
    """A context in which blocks of more than a small share of a small budget return to the system once they are freed.

    glibc cannot tell the limits that it had. Afterwards they are those that it would reach by itself in time.
    """
    if budget >= _TIGHT or _chosen_by_user():
        yield
        return
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            limit = max(_FEWEST, budget // _MAPPED)
            _set({_MMAP_THRESHOLD: limit, _TRIM_THRESHOLD: limit})
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _set(_USUAL)


def _set(limits: dict[int, int]) -> None:
    for name, value in limits.items():
        _library("mallopt")(name, value)


def _chosen_by_user() -> bool:
    """Whether limits were set from outside, which then hold."""
    names = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"}
    return bool(names & os.environ.keys()) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")


@cache
def _library(name: str) -> Callable[..., object]:
    """A function of the C library; one that does nothing where it has none of this name."""
    found = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    return (lambda *_: None) if found is None else found
