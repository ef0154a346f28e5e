"""How much memory a computation holds at its peak, found by watching it do a little of the same work.

Everything that torch allocates is seen while the work is done for two examples and for three. Both runs allocate and
free in the same order, so that each allocation is a line a + b·n in the number of examples n, and so is the sum of what
is alive at any moment: the peak for any n is the largest of these lines. Nothing has to be known of the layers.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_MARGIN = 1.1
"""For what is not seen: buffers inside of single operations, and pieces of memory that are too small to be used."""
FEW, MORE = 2, 3


@dataclass(frozen=True)
class Peak:
    """The bytes that n examples need at their peak: the largest of the lines a + b·n."""

    lines: tuple[tuple[float, float], ...]

    def __call__(self, count: int) -> int:
        """For n = `count`."""
        return int(max(a + b * count for a, b in self.lines))

    def most(self, budget: int) -> int:
        """The most examples that fit; 0 if not even one does."""
        if self(1) > budget:
            return 0
        return int(min(((budget - a) // b for a, b in self.lines if b > 0), default=1 << 40))

    def plus(self, besides: int, each: int = 0) -> Peak:
        """With so many bytes more, and so many more for each example."""
        return Peak(tuple((a + besides, b + each) for a, b in self.lines))

    def or_held(self, held: tuple[int, int], after: Peak) -> Peak:
        """This first, then `after` while what is held has so many bytes for two and for three examples."""
        each = (held[1] - held[0]) / (MORE - FEW)
        besides = held[0] - FEW * each
        return Peak(_highest({*self.lines, *((a + besides, b + each) for a, b in after.lines)}))

    def times(self, factor: float) -> Peak:
        """So many times as much."""
        return Peak(tuple((factor * a, factor * b) for a, b in self.lines))


def peak_of(work: Callable[[int], object]) -> Peak:
    """The peak of `work(n)`, which is called for two examples and for three."""
    few, more = _watched(work, FEW), _watched(work, MORE)
    if few.events != more.events:  # the first time may have done what is done once: look again
        few = _watched(work, FEW)
    if few.events != more.events:  # it does not do the same for both: count everything for each pair of examples
        return Peak(((0.0, _MARGIN * few.peak() / FEW), (_MARGIN * few.peak(), 0.0)))
    alive, lines = (0.0, 0.0), {(0.0, 0.0)}
    for number, sign in few.events:
        each = (more.sizes[number] - few.sizes[number]) / (MORE - FEW)
        besides = few.sizes[number] - FEW * each
        alive = alive[0] + sign * besides, alive[1] + sign * each
        lines.add((_MARGIN * alive[0], _MARGIN * alive[1]))
    return Peak(_highest(lines))


def _highest(lines: set[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Those that no other line is above everywhere."""
    kept: list[tuple[float, float]] = []
    for a, b in sorted(lines, key=lambda line: (-line[1], -line[0])):
        if not kept or a > kept[-1][0]:
            kept.append((a, b))
    return tuple(kept)


def _watched(work: Callable[[int], object], count: int) -> _Storages:
    storages = _Storages()
    with _no_collection(), storages:
        result = work(count)
    storages.events = storages.events[:]  # what is freed from here on does not count
    del result
    return storages


class _Storages(TorchDispatchMode):
    """Notes every storage that is allocated, by a number, and when it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.events: list[tuple[int, int]] = []
        self._known: dict[int, weakref.ref] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this, torch's compiler is imported for nothing, which takes a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Compute; what comes in was there before."""
        for value in tree_leaves((args, kwargs)):
            self._note(value, was_there=True)
        output = func(*args, **(kwargs or {}))
        for value in tree_leaves(output):
            self._note(value, was_there=False)
        if "convolution" in func.name():
            self._pass_by(max(v.nbytes for v in tree_leaves((args, output)) if isinstance(v, Tensor)))
        return output

    def _pass_by(self, size: int) -> None:
        """A buffer inside of an operation: convolutions rearrange what they read or write."""
        self.sizes.append(size)
        self.events += [(len(self.sizes) - 1, 1), (len(self.sizes) - 1, -1)]

    def peak(self) -> int:
        """The most bytes that were alive at once."""
        alive = highest = 0
        for number, sign in self.events:
            alive += sign * self.sizes[number]
            highest = max(highest, alive)
        return highest

    def _note(self, value: object, *, was_there: bool) -> None:
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            return
        storage = value.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        number = len(self.sizes)
        if not was_there:
            self.sizes.append(storage.nbytes())
            self.events.append((number, 1))
        self._known[key] = weakref.ref(
            storage, partial(_gone, self._known, key, None if was_there else self.events, number)
        )


def _gone(
    known: dict[int, weakref.ref], key: int, events: list[tuple[int, int]] | None, number: int, _: object
) -> None:
    """A storage was freed; `events` is that of the watch when it was allocated, None if it was there before."""
    known.pop(key, None)
    if events is not None:
        events.append((number, -1))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Memory is freed when it is given up, and not at other times."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
