"""Progress of long work: silent in a library call, a bar where a user asks for one, lines where it goes to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Thread
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")
_active: ContextVar[Progress | None] = ContextVar("dnn2gp_progress", default=None)
# Seconds between two lines where no bars can be drawn.
_EVERY = 60.0


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
    """Show a bar for every long computation inside the block; where no one watches (a file), a line now and then."""
    if not enabled or _active.get() is not None:
        yield
        return
    console = console or Console(stderr=True)
    with _bars(console) if console.is_terminal or console.is_jupyter else _lines(console) as bars:
        token = _active.set(bars)
        try:
            yield
        finally:
            _active.reset(token)


def _bars(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, transient=True, console=console)


@contextmanager
def _lines(console: Console) -> Iterator[Progress]:
    """Bars that are never drawn, and a thread that says every minute where they are."""
    bars, done = Progress(disable=True), Event()

    def speak() -> None:
        while not done.wait(_EVERY):
            words = "; ".join(_words(task) for task in bars.tasks)
            if words:
                console.print(f"    … {words}", highlight=False, markup=False, soft_wrap=True)

    speaker = Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield bars
    finally:
        done.set()
        speaker.join()


def _words(task: Task) -> str:
    """What a bar would show."""
    return task.description if task.total is None else f"{task.description} {task.percentage:.0f} %"
