"""What has been learned about a network: one owner, shared by all engines of the network at any weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any, TypeVar, final

T = TypeVar("T")
# The number of examples after which the first chunk is checked as a whole.
_FIRST_CHECK = 16


@final
class Knowledge:
    """Facts about a network by key, such as where its weights are used. A fact is found once and never changes.

    Keys say for what a fact holds (the shape of the inputs, say), so it does not matter in which order facts are found,
    and no fact depends on the weights or on memory addresses. It can be copied, pickled, and used by many threads.
    """

    def __init__(self, facts: Mapping[object, object] | None = None) -> None:
        """Start with these facts."""
        self._facts: dict[object, Any] = dict(facts or {})
        self._lock = RLock()
        self._seen, self._next_check = 0, _FIRST_CHECK
        self._last: tuple[object, Any] = None, None

    def find(self, key: object, learn: Callable[[], T]) -> T:
        """The fact of this key; if it is not known yet, `learn` finds it, in one thread only."""
        if key not in self._facts:
            with self._lock:
                if key not in self._facts:
                    fact = learn()  # which may add facts of its own
                    self._facts = {**self._facts, key: fact}
        return self._facts[key]

    def get(self, key: object) -> Any | None:
        """The fact of this key, or None if it is not known."""
        return self._facts.get(key)

    def known(self, topic: str) -> list[Any]:
        """All facts whose key is a tuple that begins with this topic."""
        return [fact for key, fact in self._facts.items() if isinstance(key, tuple) and key[0] == topic]

    def remember(self, key: object, value: object) -> None:
        """Keep one value that is expensive to compute, until the next one is remembered."""
        self._last = key, value

    def recall(self, key: object) -> Any | None:
        """The value that was last remembered, if it was under this key."""
        last, value = self._last
        return value if last == key else None

    def check_due(self, count: int) -> bool:
        """Whether to check a chunk of this many examples as a whole.

        True for the first chunk after a few examples, and again each time the number of examples has doubled, so that
        checks cost little in the long run. Engines at different weights count together.
        """
        with self._lock:
            self._seen += count
            if self._seen < self._next_check:
                return False
            self._next_check = 2 * self._seen
            return True

    def __getstate__(self) -> dict[str, Any]:
        """Everything except the lock and the remembered value."""
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_last")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock, self._last = RLock(), (None, None)
