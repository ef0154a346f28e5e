"""What is known of a network's forward pass: the uses of its weights in order, and where the examples are in each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dnn2gp.features.layerwise.batching import BatchAxis, find_batch_axis
from dnn2gp.features.layerwise.capture import Recorder


@dataclass(frozen=True)
class Uses:
    """For each use: its ranges of w, and the axis of the examples (None: left to the general engine)."""

    parts: tuple[tuple[slice, ...], ...]
    axes: tuple[BatchAxis | None, ...]

    def without(self, names: set[str], ranges: dict[str, slice]) -> Uses:
        """The same, leaving out every use of these weights."""
        left = [ranges[name] for name in names]
        axes = [None if _touches(parts, left) else axis for parts, axis in zip(self.parts, self.axes, strict=True)]
        return replace(self, axes=tuple(axes))

    def turned(self, names: set[str], ranges: dict[str, slice]) -> Uses:
        """The same with the other reading of the merged axes in the uses of these weights: (other, example)."""
        chosen = [ranges[name] for name in names]
        axes = [
            replace(axis, outer=not axis.outer) if axis is not None and _touches(parts, chosen) else axis
            for parts, axis in zip(self.parts, self.axes, strict=True)
        ]
        return replace(self, axes=tuple(axes))


def find_uses(two: Recorder, three: Recorder, outputs: Tensor, ranges: dict[str, slice]) -> tuple[Uses, set[str]]:
    """The uses of a forward pass with three examples, and the weights that no rule covers.

    The axis of the examples is the one that grows from a pass with two examples to one with three.
    """
    parts = tuple(use.parts for use, _ in three.uses)
    if parts != tuple(use.parts for use, _ in two.uses):
        return Uses(parts, (None,) * len(parts)), set(ranges)
    axes = tuple(
        find_batch_axis(few.batch_shape, more.batch_shape)
        for (few, _), (more, _) in zip(two.uses, three.uses, strict=True)
    )
    lost = [part for own, axis in zip(parts, axes, strict=True) if axis is None for part in own]
    seen = [part for own in parts for part in own]
    unknown = {
        name
        for name, part in ranges.items()
        if _touches((part,), [*three.unknown, *lost])
        or (not _touches((part,), seen) and _reaches(outputs, part, three))
    }
    return Uses(parts, axes), unknown


def _reaches(outputs: Tensor, part: slice, recorder: Recorder) -> bool:
    """Whether the outputs depend on a weight that was seen in no torch function (a custom autograd.Function, say)."""
    views = [view for view in recorder.views if _touches((part,), [recorder.weights.extent(view)]) and view.grad_fn]
    own = [view for view in views if recorder.weights.find(view) == part]
    if not outputs.requires_grad or not own:
        return False
    found = torch.autograd.grad(outputs.sum(), own, retain_graph=True, allow_unused=True)
    return any(gradient is not None for gradient in found)


def _touches(parts: tuple[slice, ...], others: list[slice]) -> bool:
    return any(a.start < b.stop and b.start < a.stop for a in parts for b in others)
