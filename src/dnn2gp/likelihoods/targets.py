"""Target checks that several likelihoods share. Each error says what was expected, what was found, and what to do."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from dnn2gp.network.inputs import check_dense
from dnn2gp.support.errors import InputError

# Integers that torch stores, but does not compare.
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def describe(targets: Tensor) -> str:
    """The shape and dtype of targets, for messages."""
    return f"targets of shape {tuple(targets.shape)} and dtype {targets.dtype}"


def require_targets(targets: object, num_examples: int) -> Shaped[Tensor, "N ..."]:
    """`targets`, if it is a dense tensor whose first dimension runs over the examples.

    Unsigned integers that torch does not compare become int64; from 2⁶³ on they are negative, which is refused later.
    """
    if not isinstance(targets, Tensor):
        raise InputError(
            f"targets: expected a torch.Tensor; got {type(targets).__name__}. Use torch.as_tensor(targets)."
        )
    check_dense(targets, "targets")
    if targets.ndim == 0 or targets.shape[0] != num_examples:
        count = "a single number" if targets.ndim == 0 else f"{targets.shape[0]} targets"
        raise InputError(
            f"targets: expected one target for each of the {num_examples} examples; got {count} ({describe(targets)}). "
            "Pass the targets of exactly these inputs, in the same order, with the examples along the first dimension."
        )
    return targets.to(torch.int64) if targets.dtype in _UNSIGNED else targets


def require_columns(targets: Shaped[Tensor, "N ..."], num_outputs: int) -> Shaped[Tensor, "N K"]:
    """The targets as (N, K); they must flatten to exactly K columns."""
    columns = math.prod(targets.shape[1:])
    if columns != num_outputs:
        raise InputError(
            f"targets: expected {num_outputs} target value(s) per example, one per network output; got {columns} "
            f"({describe(targets)}). Reshape the targets to ({targets.shape[0]}, {num_outputs}), or give the network "
            f"{columns} output(s)."
        )
    return targets.reshape(targets.shape[0], num_outputs)


def require_dtype(targets: Shaped[Tensor, "N ..."], dtype: torch.dtype) -> None:
    """The targets must have the network's dtype: nothing is converted silently."""
    if targets.dtype != dtype:
        raise InputError(
            f"targets: expected the network's dtype {dtype}; got {describe(targets)}. Use targets.to({dtype})."
        )


def require_real(targets: Shaped[Tensor, "N ..."], dtype: torch.dtype) -> None:
    """The targets must be bool, integer or floating point."""
    if targets.is_complex():
        raise InputError(
            f"targets: expected real targets (bool, integer or floating point); got {describe(targets)}. "
            f"Use targets.real.to({dtype})."
        )


def require_finite(targets: Shaped[Tensor, "N K"]) -> None:
    """Raise an `InputError` if a target is NaN or infinite."""
    require(targets.isfinite(), targets, "finite targets", "Remove or impute such examples, and look for an overflow.")


def require(valid: Bool[Tensor, "N ..."], targets: Shaped[Tensor, "N ..."], expected: str, advice: str) -> None:
    """Raise an `InputError` that names the first row with an invalid target, if there is one."""
    if bool(valid.all()):
        return
    first = (~valid).nonzero()[0]
    value = targets[tuple(first)].item()
    raise InputError(
        f"targets: expected {expected}; got {value} in row {int(first[0])} ({describe(targets)}). {advice}"
    )
