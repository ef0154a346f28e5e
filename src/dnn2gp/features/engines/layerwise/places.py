"""Where the weights and the examples are in a forward pass.

Each weight is a view of the flat vector w, and is recognised by its address in memory. The examples are counted by one
axis of a layer's input, alone or together with other things (tokens, windows).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


def storage_pointer(tensor: Tensor) -> int | None:
    """The address of a tensor's storage; None for tensors without one (sparse, or inside a transform of torch.func)."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return None


class FlatWeights:
    """Recognises views of the flat weight vector w, whether a layer holds them, several layers, or a slice of one."""

    def __init__(self, flat: Tensor) -> None:
        """`flat` is w, a contiguous vector."""
        self._pointer = flat.untyped_storage().data_ptr()
        self._first = flat.storage_offset()

    def holds(self, value: object) -> bool:
        """Whether a tensor lies in w."""
        return isinstance(value, Tensor) and storage_pointer(value) == self._pointer

    def find(self, value: object) -> slice | None:
        """The range of w that a tensor consists of; None for tensors that are not in w, or not contiguous."""
        if not isinstance(value, Tensor) or not self.holds(value) or not value.is_contiguous():
            return None
        start = value.storage_offset() - self._first
        return slice(start, start + value.numel())

    def extent(self, value: Tensor) -> slice:
        """The smallest range of w that contains a view, contiguous or not."""
        start = value.storage_offset() - self._first
        reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        return slice(start, start + reach + 1)


@dataclass(frozen=True)
class BatchAxis:
    """Examples lie along `axis` of the batch axes of a use, alone or merged with c other things (tokens, windows).

    A merged axis of n·c counts either (example, other), `outer`, or (other, example).
    """

    axis: int
    others: int = 1
    outer: bool = True

    def fits(self, shape: tuple[int, ...], num_examples: int) -> bool:
        """Whether the axis holds these examples, each with as many other things as before."""
        return len(shape) > self.axis and shape[self.axis] == num_examples * self.others

    def moved(self, tensor: Tensor, num_examples: int, first: int, count: int) -> Tensor:
        """The tensor with its `count` batch axes, starting at `first`, rearranged to (examples, everything else)."""
        axis = first + self.axis
        other = tensor.shape[axis] // num_examples
        if other == 1 and count == 1:
            return tensor.unsqueeze(first + 1)
        split = (num_examples, other) if self.outer else (other, num_examples)
        tensor = tensor.unflatten(axis, split).movedim(axis if self.outer else axis + 1, first)
        return tensor.flatten(first + 1, first + count)


def find_batch_axis(two: tuple[int, ...], three: tuple[int, ...]) -> BatchAxis | None:
    """The one axis that grows with the number of examples, from the shapes of a use with two and three examples."""
    if len(two) != len(three):
        return None
    grown = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if len(grown) != 1 or two[grown[0]] * 3 != three[grown[0]] * 2 or two[grown[0]] % 2:
        return None
    return BatchAxis(grown[0], two[grown[0]] // 2)
