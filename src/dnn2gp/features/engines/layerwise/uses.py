"""What is known about a forward pass: the uses of the weights in order, and the axis of the examples in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from torch.autograd.graph import GradientEdge

from dnn2gp.features.budget.plan import BlockSize
from dnn2gp.features.engines.layerwise.capture import UseRecorder
from dnn2gp.features.engines.layerwise.places import BatchAxis, find_batch_axis
from dnn2gp.features.engines.layerwise.rules import Use
from dnn2gp.features.engines.plain_passes import backward


@dataclass(frozen=True)
class Uses:
    """For each use that has a rule: its ranges of w, and the axis of the examples. The rest describes the pass."""

    parts: tuple[tuple[slice, ...], ...]
    axes: tuple[BatchAxis, ...]
    ignored: tuple[slice, ...] = ()
    """The ranges of weights that are left to the general engine, whose uses are ignored."""
    left: tuple[str, ...] = ()
    """The names of these weights."""
    sizes: tuple[BlockSize, ...] = ()
    """The sizes of the blocks that the uses make."""
    batched: bool = True
    """Whether one backward pass can be batched over several cotangents."""
    saved: int = 0
    """Numbers that a backward pass of one example saves, and"""
    largest: int = 0
    """those of the largest tensor among them."""

    @property
    def numbers(self) -> int:
        """Numbers that the uses of one example hold for one cotangent."""
        return sum(size.a + size.g for size in self.sizes)

    def without(self, names: set[str], ranges: dict[str, slice]) -> Uses:
        """Without the uses of these weights."""
        ignored = (*self.ignored, *(ranges[name] for name in names))
        kept = [(p, a) for p, a in zip(self.parts, self.axes, strict=True) if not _touches(p, ignored)]
        return replace(self, parts=tuple(p for p, _ in kept), axes=tuple(a for _, a in kept), ignored=ignored)

    def sharing(self, names: set[str], ranges: dict[str, slice]) -> set[str]:
        """These weights and all that share a use with one of them, directly or indirectly."""
        found = set(names)
        while True:
            left = [ranges[name] for name in found]
            parts = [part for own in self.parts if _touches(own, left) for part in own]
            more = {name for name, part in ranges.items() if _touches((part,), parts)}
            if more <= found:
                return found
            found |= more

    def turned(self, names: set[str], ranges: dict[str, slice]) -> Uses:
        """With the merged axes in the uses of these weights read the other way round, as (other, example)."""
        chosen = [ranges[name] for name in names]
        axes = [
            replace(axis, outer=not axis.outer) if _touches(parts, chosen) else axis
            for parts, axis in zip(self.parts, self.axes, strict=True)
        ]
        return replace(self, axes=tuple(axes))

    def merged(self, ranges: dict[str, slice]) -> set[str]:
        """The weights with a use in which the examples share their axis with other things."""
        parts = [part for own, axis in zip(self.parts, self.axes, strict=True) if axis.others > 1 for part in own]
        return {name for name, part in ranges.items() if _touches((part,), parts)}

    def matched(self, recorder: UseRecorder, num_examples: int) -> list[tuple[Use, GradientEdge]] | None:
        """The uses of another forward pass, if these are the same and have the examples on the same axes."""
        found = [(use, edge) for use, edge in recorder.uses if not _touches(use.parts, self.ignored)]
        if tuple(use.parts for use, _ in found) != self.parts:
            return None
        pairs = zip(found, self.axes, strict=True)
        return found if all(axis.fits(use.batch_shape, num_examples) for (use, _), axis in pairs) else None


def find_uses(two: UseRecorder, three: UseRecorder, outputs: Tensor, ranges: dict[str, slice]) -> tuple[Uses, set[str]]:
    """The uses of a forward pass with three examples, and the weights that no rule covers.

    The axis of the examples is the one that grows from a pass with two examples to one with three.
    """
    parts = tuple(use.parts for use, _ in three.uses)
    if parts != tuple(use.parts for use, _ in two.uses):
        return Uses((), ()), set(ranges)
    axes = [
        find_batch_axis(few.batch_shape, more.batch_shape)
        for (few, _), (more, _) in zip(two.uses, three.uses, strict=True)
    ]
    lost = [part for own, axis in zip(parts, axes, strict=True) if axis is None for part in own]
    seen = [part for own in parts for part in own]
    unknown = {
        name
        for name, part in ranges.items()
        if _touches((part,), [*three.unknown, *lost])
        or (not _touches((part,), seen) and _reaches(outputs, part, three))
    }
    kept = [(own, axis) for own, axis in zip(parts, axes, strict=True) if axis is not None]
    return Uses(tuple(own for own, _ in kept), tuple(axis for _, axis in kept)), unknown


def _reaches(outputs: Tensor, part: slice, recorder: UseRecorder) -> bool:
    """Whether the outputs depend on a weight that no torch function was seen to use (custom autograd.Function)."""
    views = [view for view in recorder.views if _touches((part,), [recorder.weights.extent(view)]) and view.grad_fn]
    own = [view for view in views if recorder.weights.find(view) == part]
    if not outputs.requires_grad or not own:
        return False
    found = backward(outputs.sum(), own, retain_graph=True, allow_unused=True)
    return any(gradient is not None for gradient in found)


def _touches(parts: Sequence[slice], others: Sequence[slice]) -> bool:
    return any(a.start < b.stop and b.start < a.stop for a in parts for b in others)
