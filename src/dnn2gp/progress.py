"""Progress of long work: silent in a library call, a bar where a user asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
_active: ContextVar[Progress | None] = ContextVar("dnn2gp_progress", default=None)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Pass `items` on, advancing a bar inside `show_progress`; outside of it, do nothing else."""
    bars = _active.get()
    if bars is None:
        yield from items
        return
    if total is None:
        items = list(items)
        total = len(items)
    task = bars.add_task(description, total=total)
    try:
        for item in items:
            yield item
            bars.advance(task)
    finally:
        bars.remove_task(task)


@contextmanager
def bar(description: str, total: int, done: int = 0) -> Iterator[Callable[[str], None]]:
    """A bar for work whose description changes: each call of what it yields counts one more, with these words."""
    bars = _active.get()
    if bars is None:
        yield lambda words: None
        return
    task = bars.add_task(description, total=total, completed=done)
    try:
        yield lambda words: bars.update(task, advance=1, description=f"{description}: {words}")
    finally:
        bars.remove_task(task)


@contextmanager
def waiting(description: str) -> Iterator[None]:
    """A moving bar for work of unknown length."""
    bars = _active.get()
    if bars is None:
        yield
        return
    task = bars.add_task(description, total=None)
    try:
        yield
    finally:
        bars.remove_task(task)


@contextmanager
def show_progress(enabled: bool = True, console: Console | None = None) -> Iterator[None]:
    """Show a bar for every long computation inside the block."""
    if not enabled or _active.get() is not None:
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, transient=True, console=console or Console(stderr=True)) as bars:
        token = _active.set(bars)
        try:
            yield
        finally:
            _active.reset(token)
