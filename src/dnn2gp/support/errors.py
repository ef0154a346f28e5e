"""The exceptions and warnings of dnn2gp. Each message says what was expected, what was found, and what to do."""

from __future__ import annotations

import sys
import warnings


class InputError(ValueError):
    """Data, targets or settings that cannot be used as given."""


class ChangedDataError(InputError):
    """Data that differ from what was first read; the message says what may have changed them."""


class NetworkError(ValueError):
    """A network that is not a deterministic function of its weights and of each example on its own."""


class NotPositiveDefiniteError(ArithmeticError):
    """A matrix that must be positive (semi-)definite and is not; the message says by how much."""


class MemoryBudgetError(MemoryError):
    """A computation that does not fit into the memory budget; the message lists the sizes and the alternatives."""


class IllConditionedError(ArithmeticError):
    """A result that rounding would change by more than it may; the message says by how much, and what to change."""


class NotFiniteError(ArithmeticError):
    """A number that overflows, or is not a number; the message says which, and what to change."""


class DivergedError(ArithmeticError):
    """A training step whose loss or weights are not finite; the state before the step is kept."""


class NotConvergedError(ArithmeticError):
    """An iteration that did not reach its accuracy; the message says how far it came, and what to change."""


class ProcessError(RuntimeError):
    """Several processes cannot continue together; the message says which one this is, and what to do."""


class OtherWorkError(InputError):
    """A results folder that was computed with different settings."""


class FileFormatError(ValueError):
    """A file that is damaged, or not a dnn2gp file of a version that this release reads."""


class MissingExtraError(ImportError):
    """A package that is not part of the base install; the message names the extra that installs it."""


EXPECTED = (
    InputError,
    NetworkError,
    NotFiniteError,
    NotPositiveDefiniteError,
    IllConditionedError,
    MemoryBudgetError,
    DivergedError,
    NotConvergedError,
    FileFormatError,
    MissingExtraError,
    ProcessError,
    OSError,
)
"""Errors that the command line reports as one message; any other error is a bug and keeps its traceback."""


class NotAMinimumWarning(UserWarning):
    """The weights are not at a minimum of the loss, and the linearised network has its minimum elsewhere."""


class ApproximationWarning(UserWarning):
    """The exact posterior does not fit, so an approximation with a stated error was chosen."""


class CautiousWarning(UserWarning):
    """The exact posterior is so wide that the GP's probabilities are far less certain than they should be."""


class EvidenceWarning(UserWarning):
    """A choice made by the evidence that should not be trusted as it stands; the message says why and what to do."""


class TrainModeWarning(UserWarning):
    """The network was passed in train mode and has layers that depend on the mode; it is evaluated in eval mode."""


class ProbabilitiesWarning(UserWarning):
    """The network seems to return probabilities where the likelihood expects logits."""


class ScheduleWarning(UserWarning):
    """Training takes more steps than its schedule was made for."""


class FallbackWarning(UserWarning):
    """Some weights have no layer rule and use the general engine, which is exact but slower."""


_OURS = ("dnn2gp", "torch", "contextlib", "functools", "jaxtyping", "beartype")


def warn_user(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the caller's line, outside this package and the libraries that wrap it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
