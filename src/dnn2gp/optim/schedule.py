"""The rates of each step where the user passes no `lr`: functions of the step t and of the share M / N of its data.

With the `peak` of the method (1 for a diagonal precision, 0.1 for a dense one), step t = 0, 1, … has

    β_t = scale · min(peak, 1.5 √(M/N)) · s_t

where s_t ≤ 1 warms up and decays. Σ ĝ of a batch has a noise of √(N/M) posterior standard deviations, so that √(M/N)
makes the noise of a step independent of the size of the batch and of the data. The rate β'_t of the precision decays
like 1/t: the precision is an average over all steps so far that forgets the first precision, however many there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import final

from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import positive_number, whole_number
from dnn2gp.weights.structures import Dense, Diagonal

MOMENTUM = 0.9
"""γ where a schedule sets the rates."""


class Schedule(ABC):
    """The rates as functions of the step, chosen as a value: `Cosine(steps)` or `OpenEnded()`."""

    @abstractmethod
    def mean_rate(self, step: int, share: float, peak: float) -> float:
        """β_t for a step on a share M / N of the data, with the `peak` of the method."""

    @abstractmethod
    def precision_rate(self, step: int, share: float) -> float:
        """β'_t."""

    @property
    def last(self) -> int | None:
        """The number of steps that the schedule was made for, if it was."""
        return None


@final
@dataclass(frozen=True)
class Cosine(Schedule):
    """For a known number of steps: β warms up, then decays along a cosine; t₀ = `hold` · `steps`, at least 3.

    s_t = min(1, (t + 1) / (warm_up · steps)) · [final + (1 − final) ½ (1 + cos(π t / steps))]
    β'_t = 2 / (t + t₀ + 2)

    The weights of the curvatures in the precision grow linearly with t, and t₀(t₀+1) / (n+t₀)(n+t₀+1) of the first
    precision is left after n steps: 1/121 at the end. Steps beyond `steps` have the β of the last one.
    """

    steps: int
    scale: float = 1.0
    """Multiplies β."""
    warm_up: float = 0.05
    """The fraction of the steps in which β grows linearly."""
    final: float = 0.01
    """What the cosine decays to, as a fraction."""
    hold: float = 0.1
    """t₀ as a fraction of the steps: the larger, the longer the first precision counts."""

    def __post_init__(self) -> None:
        whole_number("steps", self.steps)
        positive_number("scale", self.scale)
        positive_number("hold", self.hold)
        for name in ("warm_up", "final"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise InputError(f"{name}: expected a fraction in [0, 1]; got {value!r}.")

    def mean_rate(self, step: int, share: float, peak: float) -> float:
        now = min(step, self.steps - 1)
        warm = min(1.0, (now + 1) / max(1.0, self.warm_up * self.steps))
        decay = self.final + (1 - self.final) * 0.5 * (1 + cos(pi * now / self.steps))
        return self.scale * min(peak, 1.5 * sqrt(share)) * warm * decay

    def precision_rate(self, step: int, share: float) -> float:
        return 2 / (step + max(3.0, self.hold * self.steps) + 2)

    @property
    def last(self) -> int:
        return self.steps


@final
@dataclass(frozen=True)
class OpenEnded(Schedule):
    """For an unknown number of steps: rates that decay like 1/t, so that training can end at any step.

    s_t = min(1, (t + 1) / 10) / (1 + t / t₁),     β'_t = 1 / (t + t₀ + 1)

    with time in epochs of N / M steps: t₁ = 3 epochs, at least 20 steps, and t₀ = 1/10 epoch, at least 3 steps. The
    precision is then the mean of all curvatures so far, in which the first precision counts t₀ times. A schedule that
    knows the number of steps learns faster and ends at a better place.
    """

    scale: float = 1.0
    """Multiplies β."""

    def __post_init__(self) -> None:
        positive_number("scale", self.scale)

    def mean_rate(self, step: int, share: float, peak: float) -> float:
        decay = 1 + step / max(3 / share, 20.0)
        return self.scale * min(peak, 1.5 * sqrt(share)) * min(1.0, (step + 1) / 10) / decay

    def precision_rate(self, step: int, share: float) -> float:
        return 1 / (step + max(0.1 / share, 3.0) + 1)


def chosen_schedule(steps: int | None, schedule: Schedule | None, lr: float | None) -> Schedule | None:
    """The schedule that these arguments ask for, None where `lr` is the rate."""
    given = [name for name, value in (("lr", lr), ("steps", steps), ("schedule", schedule)) if value is not None]
    if len(given) > 1:
        raise InputError(
            f"{given[0]}: expected at most one of lr, steps and schedule; got {' and '.join(given)}. lr is a constant "
            "rate; steps=1000 is short for schedule=Cosine(1000)."
        )
    if schedule is not None and not isinstance(schedule, Schedule):
        raise InputError(f"schedule: expected a value such as Cosine(steps=1000) or OpenEnded(); got {schedule!r}.")
    if lr is not None:
        return None
    return schedule or (OpenEnded() if steps is None else Cosine(steps))


def peak_rate(structure: Dense | Diagonal) -> float:
    """The largest β: 1 for a diagonal precision, 0.1 for a dense one, whose steps are longer along flat directions."""
    return 1.0 if structure == Diagonal() else 0.1
