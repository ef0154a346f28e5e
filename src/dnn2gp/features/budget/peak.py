"""The peak memory of a computation, measured on a small part of the same work.

Everything that torch allocates is watched while the work is done for a few small numbers of examples. All runs allocate
and free in the same order, so the size of each allocation is a polynomial in the number of examples n, and so is the
sum of what is alive at any moment: the peak for any n is the largest of these. No knowledge about layers is needed.
"""

from __future__ import annotations

import gc
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Curve = tuple[float, ...]
"""The coefficients of a polynomial in the number of examples: a, a + b·n, or a + b·n + c·n²."""

_MARGIN = 1.2
"""For what is not seen: buffers inside of single operations, and blocks of memory that are too small to be reused."""
FEW, MORE = 2, 3
_PAIRS = (1, 2, 3)
# Convolutions store channels in groups of this many, unless there are fewer than so many.
_GROUP, _PLAIN = 16, 4
_LARGEST = 1 << 40


@dataclass(frozen=True)
class Peak:
    """The bytes that n examples need at their peak: the largest of several polynomials in n."""

    curves: tuple[Curve, ...]

    def __call__(self, count: int) -> int:
        """For n = `count`."""
        return int(max(_value(curve, count) for curve in self.curves))

    def most(self, budget: int) -> int:
        """The most examples that fit into the budget; 0 if not even one does."""
        return bisect_right(range(1, _LARGEST), budget, key=self)

    def plus(self, fixed: int, each: int = 0) -> Peak:
        """With `fixed` more bytes, and `each` more for every example."""
        return Peak(tuple(_sum(curve, (float(fixed), float(each))) for curve in self.curves))

    def or_held(self, held: tuple[int, int], after: Peak) -> Peak:
        """This first, then `after`, during which a result of this many bytes (for two and three examples) is held."""
        line = _polynomial((FEW, MORE), held)
        return Peak(_highest({*self.curves, *(_sum(curve, line) for curve in after.curves)}))

    def times(self, factor: float) -> Peak:
        """The peak times a factor."""
        return Peak(tuple(tuple(factor * value for value in curve) for curve in self.curves))


def peak_of(work: Callable[[int], object]) -> Peak:
    """The peak of `work(n)`, whose allocations grow linearly with n; it is called for two examples and for three."""
    few, more = _watched(work, FEW), _watched(work, MORE)
    if few.events != more.events:  # the first run may include one-off work: measure again
        few = _watched(work, FEW)
    if few.events != more.events:  # the runs differ: count everything for each pair of examples
        return Peak(((0.0, _MARGIN * few.peak() / FEW), (_MARGIN * few.peak(), 0.0)))
    sizes = zip(few.sizes, more.sizes, strict=True)
    return _peak([_polynomial((FEW, MORE), pair) for pair in sizes], few.events)


def peak_of_pairs(work: Callable[[int, bool], object], factor: float = 1.0) -> Peak:
    """The peak of `work(n, False)` on n × n pairs of examples, whose allocations are quadratic in n.

    If the work has `factor` times as many rows per example as are tried, `work(n, True)` tries half as many, to show
    how each allocation grows with the rows. If it does nothing, all are taken to grow quadratically.
    """
    runs = [_watched(lambda count: work(count, False), count) for count in _PAIRS]
    if any(run.events != runs[0].events for run in runs):
        return _through_peaks([run.peak() for run in runs], factor)
    curves = [_polynomial(_PAIRS, sizes) for sizes in zip(*(run.sizes for run in runs), strict=True)]
    if factor != 1:
        half = _watched(lambda count: work(count, True), FEW)
        known = half.sizes if half.events == runs[1].events else [0] * len(curves)
        growth = [_growth(*pair, factor) for pair in zip(known, runs[1].sizes, strict=True)]
        curves = [tuple(by * value for value in curve) for by, curve in zip(growth, curves, strict=True)]
    return _peak(curves, runs[0].events)


def _through_peaks(peaks: Sequence[int], factor: float) -> Peak:
    """A parabola b·n + c·n² above three peaks, for runs that do not make the same allocations."""
    _, _, curvature = _polynomial(_PAIRS, peaks)
    c = max(0.0, curvature)
    b = max((peak - c * count**2) / count for count, peak in zip(_PAIRS, peaks, strict=True))
    return Peak(((0.0, _MARGIN * factor**2 * b, _MARGIN * factor**2 * c),))


def _growth(half: int, whole: int, factor: float) -> float:
    """How much larger an allocation gets with `factor` times the rows, from its size for half the rows and for all."""
    power = log(whole / half, 2) if 0 < half <= whole else 2.0
    return factor ** min(2.0, power)


def _peak(curves: Sequence[Curve], events: Iterable[tuple[int, int]]) -> Peak:
    """The highest sums of what is alive, as allocations come (1) and go (−1)."""
    alive: Curve = (0.0,)
    found: set[Curve] = {alive}
    for number, sign in events:
        alive = _sum(alive, tuple(sign * value for value in curves[number]))
        found.add(tuple(_MARGIN * value for value in alive))
    return Peak(_highest(found))


def _polynomial(points: Sequence[int], values: Sequence[int]) -> Curve:
    """The line or parabola through two or three consecutive points."""
    if len(points) == 2:
        slope = (values[1] - values[0]) / (points[1] - points[0])
        return values[0] - points[0] * slope, slope
    first, second, third = values
    c = (third - 2 * second + first) / 2
    b = second - first - c * (2 * points[0] + 1)
    return first - b * points[0] - c * points[0] ** 2, b, c


def _value(curve: Curve, count: int) -> float:
    return sum(value * count**power for power, value in enumerate(curve))


def _sum(first: Curve, second: Curve) -> Curve:
    size = max(len(first), len(second))
    padded = (curve + (0.0,) * (size - len(curve)) for curve in (first, second))
    return tuple(a + b for a, b in zip(*padded, strict=True))


def _highest(curves: set[Curve]) -> tuple[Curve, ...]:
    """Those that no other one exceeds in every coefficient."""
    size = max(map(len, curves))
    padded = {curve + (0.0,) * (size - len(curve)) for curve in curves}
    kept: list[Curve] = []
    for curve in sorted(padded, key=lambda curve: curve[::-1], reverse=True):
        if not any(all(a >= b for a, b in zip(other, curve, strict=True)) for other in kept):
            kept.append(curve)
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
        """Without this, torch's compiler is imported needlessly, which takes a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        for value in tree_leaves((args, kwargs)):
            self._note(value, was_there=True)
        output = func(*args, **(kwargs or {}))
        for value in tree_leaves(output):
            self._note(value, was_there=False)
        if "convolution" in func.name():
            self._pass_by(_rearranged([value for value in tree_leaves((args, output)) if isinstance(value, Tensor)]))
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


def _rearranged(tensors: Sequence[Tensor]) -> int:
    """The bytes of what a convolution reads and writes, rearranged: its two largest tensors, channels in groups of 16.

    A few channels, as those of an image, are not grouped.
    """
    sizes = []
    for tensor in tensors:
        channels = tensor.shape[1] if tensor.ndim > 2 else 1
        grouped = channels if channels < _PLAIN else -(-channels // _GROUP) * _GROUP
        sizes.append(tensor.nbytes // max(1, channels) * grouped)
    return sum(sorted(sizes)[-2:])


def _gone(
    known: dict[int, weakref.ref], key: int, events: list[tuple[int, int]] | None, number: int, _: object
) -> None:
    """A storage was freed; `events` is that of the watch when it was allocated, None if it was there before."""
    known.pop(key, None)
    if events is not None:
        events.append((number, -1))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection, so that memory is freed only when it is released."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
