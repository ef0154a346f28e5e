"""Progress of long computations: silent in library calls, bars in a terminal, a line per minute everywhere else."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, TypeVar, final

from dnn2gp.support.errors import MissingExtraError
from dnn2gp.support.optional import needs_extra

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

T = TypeVar("T")
# Seconds between two lines where no bars can be drawn.
_EVERY = 60.0


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield `items`, advancing a bar inside `show_progress`; outside of it, do nothing else."""
    display = _active.get()
    if display is None:
        yield from items
        return
    if total is None:
        items = list(items)
        total = len(items)
    with display.task(description, total) as advance:
        for item in items:
            yield item
            advance(description)


@contextmanager
def bar(description: str, total: int, done: int = 0) -> Iterator[Callable[[str], object]]:
    """A bar for work with a changing description: each call of the yielded function advances it by one."""
    display = _active.get()
    if display is None:
        yield lambda words: None
        return
    with display.task(description, total, done) as advance:
        yield lambda words: advance(f"{description}: {words}")


@contextmanager
def waiting(description: str) -> Iterator[None]:
    """A moving bar for work of unknown length."""
    display = _active.get()
    if display is None:
        yield
        return
    with display.task(description, None):
        yield


@contextmanager
def show_progress(enabled: bool = True, console: Console | None = None) -> Iterator[None]:
    """Show every long computation inside the block on stderr, or on `console`.

    Bars need a terminal and the package rich. Without either, a line is printed once a minute.
    """
    if not enabled or _active.get() is not None:
        yield
        return
    with _display(console) as display:
        token = _active.set(display)
        try:
            yield
        finally:
            _active.reset(token)


class _Display(ABC):
    """Where progress is shown."""

    @abstractmethod
    def task(
        self, description: str, total: int | None, done: int = 0
    ) -> AbstractContextManager[Callable[[str], object]]:
        """Show a task inside the block; the yielded function advances it by one and sets its description."""


_active: ContextVar[_Display | None] = ContextVar("dnn2gp_progress", default=None)


def _display(console: Console | None) -> AbstractContextManager[_Display]:
    try:
        with needs_extra("cli", "A progress bar"):
            from rich.console import Console
    except MissingExtraError:
        return _lines(partial(print, file=sys.stderr, flush=True))
    console = console or Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        return _bars(console)
    return _lines(partial(print, file=console.file, flush=True))


@final
class _Bars(_Display):
    """Bars drawn by rich."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def task(self, description: str, total: int | None, done: int = 0) -> Iterator[Callable[[str], object]]:
        own: TaskID = self._progress.add_task(description, total=total, completed=done)
        try:
            yield lambda words: self._progress.update(own, advance=1, description=words)
        finally:
            self._progress.remove_task(own)


@contextmanager
def _bars(console: Console) -> Iterator[_Display]:
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, console=console) as progress:
        yield _Bars(progress)


@dataclass(frozen=True)
class _Line:
    """One task as text."""

    description: str
    total: int | None
    done: int

    def __str__(self) -> str:
        share = "" if not self.total else f" {self.done / self.total:.0%}".replace("%", " %")
        return self.description + share


@final
class _Lines(_Display):
    """The open tasks, for a thread that prints them."""

    def __init__(self) -> None:
        self.open: dict[object, _Line] = {}

    @contextmanager
    def task(self, description: str, total: int | None, done: int = 0) -> Iterator[Callable[[str], object]]:
        own = object()
        self.open[own] = _Line(description, total, done)

        def advance(words: str) -> None:
            self.open[own] = replace(self.open[own], description=words, done=self.open[own].done + 1)

        try:
            yield advance
        finally:
            del self.open[own]


@contextmanager
def _lines(say: Callable[[str], object]) -> Iterator[_Display]:
    """Say once a minute what is under way."""
    display, done = _Lines(), Event()

    def speak() -> None:
        while not done.wait(_EVERY):
            words = "; ".join(str(line) for line in list(display.open.values()))
            if words:
                say(f"    … {words}")

    speaker = Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield display
    finally:
        done.set()
        speaker.join()
