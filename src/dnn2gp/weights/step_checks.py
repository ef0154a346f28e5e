"""Checks of the settings of an online-Newton step: rates, positive numbers, counts."""

from __future__ import annotations

from dnn2gp.support.errors import InputError


def check_rate(name: str, value: float) -> float:
    """β ∈ (0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise InputError(
            f"{name}: expected a learning rate in (0, 1], the weight of the new curvature and gradient; got {value!r}. "
            "It is the β of Eqs. (11) and (12) on the summed loss, which is not Adam's learning rate: try 0.1."
        )
    return value


def check_positive(name: str, value: float) -> float:
    """A finite number > 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError(f"{name}: expected a finite number > 0; got {value!r}.")
    return value


def check_step_settings(num_data: int, num_samples: int, momentum: float, temperature: float, antithetic: bool) -> None:
    """Raise `InputError` for the first setting that is out of range."""
    if isinstance(num_data, bool) or not isinstance(num_data, int) or num_data < 1:
        raise InputError(f"num_data: expected N ≥ 1, the total number of training examples; got {num_data!r}.")
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 0:
        raise InputError(f"num_samples: expected an integer ≥ 0, where 0 means at the mean; got {num_samples!r}.")
    if isinstance(momentum, bool) or not isinstance(momentum, int | float) or not 0 <= momentum < 1:
        raise InputError(f"momentum: expected a number in [0, 1); got {momentum!r}.")
    check_positive("temperature", temperature)
    if antithetic and num_samples % 2:
        raise InputError(f"antithetic samples come in pairs: expected an even num_samples; got {num_samples}.")
