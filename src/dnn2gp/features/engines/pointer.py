"""Where a tensor's numbers are in memory."""

from __future__ import annotations

from torch import Tensor


def storage_pointer(tensor: Tensor) -> int | None:
    """The address of a tensor's storage; None for tensors without one (sparse, or inside a transform of torch.func)."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return None
