"""Trying a faster way to a product, and comparing it with the plain one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from threading import RLock

import torch
from torch import Tensor

_WARNING_FILTERS = RLock()
"""Python's warning filters belong to the process: one thread at a time changes and restores them."""


def attempt(function: Callable[[], Tensor]) -> Tensor | None:
    """The result, or None where a layer lacks the rule for it, so that another implementation takes over.

    Where torch.func warns that it loops over a layer for want of a batching rule, a plain loop serves as well.
    """
    try:
        with _WARNING_FILTERS, warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule")
            return function()
    except (RuntimeError, ValueError, TypeError, UserWarning):
        return None


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two ways to a product agree up to rounding."""
    tolerance = 1e3 * torch.finfo(expected.dtype).eps * (1 + expected.abs().max())
    return bool((found - expected).abs().max() <= tolerance)
