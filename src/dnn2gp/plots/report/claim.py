"""A claim of the paper, and whether it holds here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """One thing that the paper says, and what came of it here."""

    what: str
    paper: str
    measured: str
    holds: bool | None
    """None where there is nothing to hold it against."""
