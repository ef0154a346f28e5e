"""The checked parameters of an estimator: in scikit-learn, constructors only store them and `fit` checks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from numbers import Integral, Real
from typing import TypeGuard

import numpy as np
from sklearn.utils import check_random_state

from dnn2gp.evidence.tuning_result import EVIDENCE
from dnn2gp.network.mlp import ACTIVATIONS
from dnn2gp.support.errors import InputError

MAX_WEIGHTS = 3000
"""Training keeps several P × P matrices per restart, and factorises one in every step."""


@dataclass(frozen=True)
class Settings:
    """How networks are built, trained and tuned."""

    widths: tuple[int, ...]
    depth: int
    activation: str
    prior_precision: float | None
    """δ; None: tuned by the evidence."""
    restarts: int
    max_rounds: int
    seed: int

    @staticmethod
    def checked(
        *,
        width: object,
        depth: object,
        activation: object,
        prior_precision: object,
        restarts: object,
        max_rounds: object,
        random_state: object,
    ) -> Settings:
        """Settings from the parameters of an estimator; an `InputError` names the first that is invalid."""
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise InputError(f"activation: expected one of {', '.join(ACTIVATIONS)}; got {activation!r}.")
        return Settings(
            widths=_widths(width),
            depth=_count("depth", depth, 0),
            activation=activation,
            prior_precision=None if is_evidence(prior_precision) else number("prior_precision", prior_precision),
            restarts=_count("restarts", restarts, 1),
            max_rounds=_count("max_rounds", max_rounds, 1),
            seed=seed_of(random_state),
        )

    def check_size(self, num_inputs: int, num_outputs: int) -> None:
        """Raise an `InputError` if a network has more weights than can be tuned."""
        for width in self.widths:
            sizes = [num_inputs, *[width] * self.depth, num_outputs]
            count = sum((before + 1) * after for before, after in pairwise(sizes))
            if count > MAX_WEIGHTS:
                raise InputError(
                    f"width: expected a network with at most {MAX_WEIGHTS} weights, because training keeps a square "
                    f"matrix of them; {num_inputs} columns, width {width}, depth {self.depth} and {num_outputs} "
                    f"outputs make {count}. Use a smaller width, or reduce the columns first, for example with PCA in "
                    "a Pipeline."
                )


def is_evidence(value: object) -> bool:
    """Whether a parameter is to be tuned by the evidence."""
    return isinstance(value, str) and value == EVIDENCE


def number(name: str, value: object) -> float:
    """The value as a float, if it is a finite number > 0."""
    if not isinstance(value, Real) or isinstance(value, bool) or not (isfinite(float(value)) and float(value) > 0):
        raise InputError(f'{name}: expected "{EVIDENCE}" or a finite number > 0; got {value!r}.')
    return float(value)


def seed_of(random_state: object) -> int:
    """A seed for torch from an int, a RandomState or None; None gives a different one each time."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def is_several(value: object) -> TypeGuard[Sequence[object]]:
    """Whether the value is a sequence other than a string."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _widths(width: object) -> tuple[int, ...]:
    widths = [_count("width", each, 1) for each in (width if is_several(width) else [width])]
    if not widths:
        raise InputError("width: expected an int ≥ 1 or a sequence of them; got an empty one.")
    return tuple(dict.fromkeys(widths))


def _count(name: str, value: object, least: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        sequence = " or a sequence of them" if name == "width" else ""
        raise InputError(f"{name}: expected an int ≥ {least}{sequence}; got {value!r}.")
    return int(value)
