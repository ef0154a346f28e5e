"""A claim of the paper, and whether it holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and what was measured."""

    what: str
    paper: str
    measured: str
    holds: bool | None
    """None if it cannot be judged."""
