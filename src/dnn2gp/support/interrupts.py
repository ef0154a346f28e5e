"""Changes to what belongs to the user that are taken back whenever Ctrl-C arrives, also while they are taken back."""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from types import FrameType
from typing import Any, final
from weakref import WeakSet


class Temporary(ABC):
    """A context with a change that is undone at its end.

    `try` and `finally` are not enough: Ctrl-C may arrive between the change and `try`, or in `finally`, and raise
    KeyboardInterrupt there. While such a context is open in the main thread, the one that signals reach, the handler of
    SIGINT is therefore one that undoes all open changes *before* the exception is raised.

    Python ignores what is raised where an object is freed. Work that goes on after its change was undone is wrong, so
    KeyboardInterrupt is then raised at the end of the context.
    """

    def __enter__(self) -> None:
        _open.add(self)
        self._change()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._undo()
        if _open.remove(self) and kind is None:
            raise KeyboardInterrupt

    @abstractmethod
    def _change(self) -> None:
        """Make the change."""

    @abstractmethod
    def _undo(self) -> None:
        """Take it back as far as it was made, possibly in the midst of `_change` or `_undo`, and more than once."""


@final
class _Open:
    """The open contexts of the main thread, and the handler of SIGINT before the first of them."""

    def __init__(self) -> None:
        self._contexts: list[Temporary] = []
        self._before: Any = None
        self._undone: WeakSet[Temporary] = WeakSet()
        """Contexts that the handler has undone and that are not closed yet."""

    def add(self, context: Temporary) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if not self._contexts:
            handler = signal.getsignal(signal.SIGINT)
            if not callable(handler):  # ignored, or not Python's
                return
            if handler != self._handle:
                self._before = handler
                signal.signal(signal.SIGINT, self._handle)
        self._contexts.append(context)

    def remove(self, context: Temporary) -> bool:
        """Close a context. Returns whether the handler has undone it."""
        undone = context in self._undone
        self._undone.discard(context)
        if context not in self._contexts:  # of another thread, or undone by the handler
            return undone
        self._contexts.remove(context)
        if not self._contexts:
            signal.signal(signal.SIGINT, self._before)
        return undone

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """The handler before; if it raises, which ends the contexts, undo them first."""
        try:
            self._before(number, frame)
        except BaseException:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C asks for nothing more
            try:
                for context in reversed(self._contexts):
                    context._undo()
            finally:
                self._undone.update(self._contexts)
                self._contexts.clear()
                signal.signal(signal.SIGINT, self._before)
            raise


_open = _Open()
