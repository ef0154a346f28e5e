"""Numbers that users pass: counts, seeds and positive numbers, as Python's own, or an error that names the argument."""

from __future__ import annotations

from math import inf, nan
from numbers import Integral, Real

from dnn2gp.support.errors import InputError

LARGEST_SEED = 2**32 - 1
"""The largest seed that NumPy takes. torch takes larger ones, but seeds are multiplied to make others from them."""


def whole_number(name: str, value: object, least: int = 1) -> int:
    """`value`, if it is an integer (also of NumPy) of at least `least`: 2.5 samples are a mistake, and so is True.

    It is below 2⁶³, so that torch can count to it.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) < 2**63:
        return int(value)
    limit = " and below 2⁶³" if isinstance(value, Integral) and int(value) >= 2**63 else ""
    raise InputError(f"{name}: expected a whole number of at least {least}{limit}; got {_shown(value)}.")


def seed_number(name: str, value: object) -> int:
    """`value`, if it is an integer from 0 to 2³² − 1."""
    if isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) <= LARGEST_SEED:
        return int(value)
    raise InputError(f"{name}: expected a whole number from 0 to {LARGEST_SEED}; got {_shown(value)}.")


def positive_number(name: str, value: object) -> float:
    """`value` as a float, if it is a finite number > 0 that a float can hold."""
    number = as_float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    if 0 < number < inf:
        return number
    raise InputError(f"{name}: expected a finite number > 0; got {_shown(value)}.")


def number_from_zero(name: str, value: object) -> float:
    """`value` as a float, if it is a finite number ≥ 0 that a float can hold."""
    number = as_float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    if 0 <= number < inf:
        return number
    raise InputError(f"{name}: expected a finite number ≥ 0; got {_shown(value)}.")


def as_float(value: Real | int | float) -> float:
    """The number as a float, infinite if it is an integer or fraction that no float can hold."""
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf  # pyright: ignore[reportOperatorIssue] (all real numbers are ordered)


def _shown(value: object) -> str:
    """The value for a message; Python refuses to print integers of more than some thousand digits."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)
