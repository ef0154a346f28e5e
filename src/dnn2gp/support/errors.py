"""The errors and warnings of dnn2gp: each says what was expected, what came, and what to do."""

from __future__ import annotations

import sys
import warnings


class InputError(ValueError):
    """Data, targets or settings that cannot be used as they are."""


class NetworkError(ValueError):
    """A network that is not a deterministic function of its weights and of each example alone."""


class NotPositiveDefiniteError(ArithmeticError):
    """A matrix that must be positive (semi-)definite and is not; the message says by how much."""


class MemoryBudgetError(MemoryError):
    """A computation that cannot fit into the memory budget, with the figures and the alternatives."""


class DivergedError(ArithmeticError):
    """A training step whose loss or weights are no numbers; the state before it is kept."""


class OtherWorkError(InputError):
    """A folder whose finished work is of other settings."""


class FileFormatError(ValueError):
    """A file that is not a whole dnn2gp file of a version that this release reads."""


EXPECTED = (
    InputError,
    NetworkError,
    NotPositiveDefiniteError,
    MemoryBudgetError,
    DivergedError,
    FileFormatError,
    OSError,
)
"""What commands say in words; any other error is a bug, and keeps its traceback."""


class NotAMinimumWarning(UserWarning):
    """The weights are not a minimum of the loss, so the GP's mean is not the network (one Gauss-Newton step away)."""


class EvidenceWarning(UserWarning):
    """A choice by evidence that should not be trusted as it is; the message says why, and what to do."""


class TrainModeWarning(UserWarning):
    """The network came in train mode and has layers that behave differently there; it is evaluated in eval mode."""


class FallbackWarning(UserWarning):
    """Some weights have no layer rule and are left to the general engine, which is right but slower."""


_OURS = ("dnn2gp", "torch", "contextlib", "functools", "jaxtyping", "beartype")


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of this package, and of what wraps its functions, that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
