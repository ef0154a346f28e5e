"""A search along one line, log δ or log λ, where every evaluation is a training run: few steps, and only uphill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

# The factor by which steps are shortened after both directions have failed.
_SHORTER = 0.35


@final
@dataclass
class LineSearch:
    """Steps of ±`length` from the best place so far.

    A step that improves is repeated. One that does not is followed by a step to the other side; after both sides have
    failed, the steps become shorter.
    """

    length: float
    """The length of the next step."""
    direction: float = 1.0
    """1 or −1."""
    failed_sides: int = 0
    """How many sides of the best place are known to be worse at this length."""

    @property
    def step(self) -> float:
        """The next step."""
        return self.direction * self.length

    def learn(self, better: bool) -> None:
        """Take note of whether the step led to a better place, which is then the best one."""
        if better:
            self.failed_sides = 1  # the place that the step came from is worse
            return
        self.failed_sides += 1
        self.direction *= -1
        if self.failed_sides > 1:
            self.length *= _SHORTER
            self.failed_sides = 0
