"""One lock for everything of the user's that the library changes for a moment and then restores."""

from __future__ import annotations

from threading import RLock

USER_STATE = RLock()
"""Held while a user's own module is read or run, and while global random generators are saved and restored.

A single lock for all of them cannot deadlock with itself, and it is needed rarely: networks run on private copies, and
almost none of them draws random numbers.
"""
