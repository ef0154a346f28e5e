"""One finding of a diagnosis, and its grades."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

GOOD, CAUTION, BAD = "good", "caution", "bad"
NOTE = "note"
"""The grade of a finding that does not count for the verdict."""


@final
@dataclass(frozen=True)
class Finding:
    """What was measured, its grade, what was found in a sentence, and what to do about it if it is not good."""

    what: str
    grade: str
    reading: str
    advice: str = ""

    def __str__(self) -> str:
        return f"[{self.grade}] {self.reading}"


def graded(value: float, good: float, bad: float) -> str:
    """Good up to one threshold, bad beyond the other."""
    return GOOD if value <= good else CAUTION if value <= bad else BAD


def worst(findings: list[Finding]) -> str:
    """The worst grade; notes do not count."""
    return max((each.grade for each in findings if each.grade != NOTE), key=[GOOD, CAUTION, BAD].index, default=GOOD)
