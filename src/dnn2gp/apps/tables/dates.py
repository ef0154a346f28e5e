"""Dates in tables: read as days if they can be read in one way only, and refused otherwise."""

from __future__ import annotations

import re
from datetime import date
from math import nan

import numpy as np
import pandas as pd

_EPOCH = date(1970, 1, 1).toordinal()
EPOCH = "days since 1970-01-01"
"""What a date becomes, in words."""

_DAY = r"(\d{4})([-/])(\d{1,2})\2(\d{1,2})"
_TIME = r"(?:[T ](\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?)?"
_ZONE = r"(?: ?(Z|[+-]\d{2}:?\d{2}))?"
_DATE = re.compile(_DAY + _TIME + _ZONE)
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
# Day and month in an unknown order, names of months, and months without a day.
_LIKE_A_DATE = re.compile(
    rf"\d{{1,2}}([-/.])\d{{1,2}}\1(?:\d{{4}}|\d{{2}})(?:[T ,].*)?|\d{{1,2}}\.?[- ]{_MONTH}[- ,]+\d{{2,4}}.*"
    rf"|{_MONTH}[- ]\d{{1,2}}(?:st|nd|rd|th)?[- ,]+\d{{2,4}}.*|{_MONTH}[- ]\d{{4}}|\d{{4}}[-/]\d{{1,2}}",
    re.IGNORECASE,
)


def days(texts: pd.Series) -> np.ndarray:
    """Dates such as 2024-03-31 or 2024-03-31 12:30+02:00 as days since 1970-01-01; NaN for any other text."""
    known = {text: _days(text) for text in texts.unique() if isinstance(text, str)}
    return np.array([known.get(text, nan) for text in texts.tolist()], dtype=np.float64)


def like_dates(texts: pd.Series) -> np.ndarray:
    """Which texts seem to be dates, but do not say for sure which: 03/04/2024, 3 Apr 2024, 2024-03."""
    found = [isinstance(text, str) and _LIKE_A_DATE.fullmatch(text) is not None for text in texts]
    return np.array(found, dtype=bool)


def have_zones(texts: pd.Series) -> np.ndarray:
    """Which texts are dates with a time zone."""
    found = (_DATE.fullmatch(text) if isinstance(text, str) else None for text in texts)
    return np.array([match is not None and match[8] is not None for match in found], dtype=bool)


def _days(text: str) -> float:
    found = _DATE.fullmatch(text)
    if found is None:
        return nan
    year, _, month, day, hour, minute, second, zone = found.groups()
    try:
        whole = date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:  # no such day
        return nan
    hours, minutes, seconds = int(hour or 0), int(minute or 0), float(second or 0)
    if hours > 23 or minutes > 59 or seconds >= 60:
        return nan
    return whole + (3600 * hours + 60 * minutes + seconds - _offset(zone)) / 86400


def _offset(zone: str | None) -> int:
    """The seconds by which clocks in a time zone are ahead of UTC."""
    if zone in (None, "Z"):
        return 0
    sign = -1 if zone[0] == "-" else 1
    return sign * (3600 * int(zone[1:3]) + 60 * int(zone[-2:]))
