"""Shapes and types checked by jaxtyping and beartype, in the first calls of each function only.

To check every call takes up to three times as long as the tests themselves: most of it in functions that are called,
or defined inside others, thousands of times with the same shapes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from types import CodeType
from typing import Any

import jaxtyping

# Calls of a function that are checked before `forget` is called again.
FIRST = 2
# A function inside another is decorated whenever it is defined, which takes a millisecond: its checks are shared by the
# tests of a file. All others are checked anew in each test.
_rounds = {"outer": 0, "inner": 0}
_calls: dict[CodeType, list[int]] = {}  # of each function: calls in a round, and the round
_jaxtyped = jaxtyping.jaxtyped


def install(package: str) -> None:
    """Check what is imported of the package from now on."""
    jaxtyping.jaxtyped = _first_calls  # the hook decorates with jaxtyping.jaxtyped(typechecker=...)
    jaxtyping.install_import_hook(package, "beartype.beartype")
    errors = import_module(f"{package}.support.errors")
    errors._OURS = (*errors._OURS, __name__)  # warnings look for the user's line beyond what wraps a function


def forget(kind: str = "outer") -> None:
    """Begin to count anew, for functions of a module or a class ("outer"), or inside of another ("inner")."""
    _rounds[kind] += 1


def _first_calls(*, typechecker: Any) -> Callable[[Any], Any]:
    strict = _jaxtyped(typechecker=typechecker)

    def decorate(target: Any) -> Any:
        if not inspect.isfunction(target):
            return strict(target)  # a class, whose fields are checked when it is made
        kind = "inner" if "<locals>" in target.__qualname__ else "outer"
        seen, checked = _calls.setdefault(target.__code__, [0, 0]), None

        @functools.wraps(target)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal checked
            if seen[1] != _rounds[kind]:
                seen[:] = 0, _rounds[kind]
            if seen[0] >= FIRST:
                return target(*args, **kwargs)
            seen[0] += 1
            if checked is None:
                checked = strict(target)
            return checked(*args, **kwargs)

        return call

    return decorate
