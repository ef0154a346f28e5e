"""Weights seen as complex numbers: torch allows this only for tensors at an even place of their memory.

Alone, every weight begins at place 0; as a part of the flat vector w, it may begin anywhere.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


def misplaced(error: RuntimeError) -> bool:
    """Whether torch refused a tensor for its place in memory."""
    return "storage_offset" in str(error)


class CopiedIfMisplaced(TorchFunctionMode):
    """Copies a tensor where torch refuses it for its place in memory."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if not misplaced(error):
                raise
            return func(*(value.clone() if isinstance(value, Tensor) else value for value in args), **kwargs)
