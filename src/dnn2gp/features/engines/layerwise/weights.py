"""Recognising weights: each is a view of the flat vector w, and is identified by its address in memory."""

from __future__ import annotations

from torch import Tensor

from dnn2gp.features.engines.pointer import storage_pointer


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
