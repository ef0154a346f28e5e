"""Where the examples are inside a network: the axis of a layer's input that counts them, alone or with other things."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
