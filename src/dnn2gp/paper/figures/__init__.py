"""One module per figure. Each defines FIGURE, a `FigureKind`: its configuration, computation, claims and drawing.

A new figure is one new module in this package; nothing else has to list it.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from dnn2gp.paper.figure import FigureKind


def all_figures() -> dict[str, FigureKind]:
    """The figures of all modules in this package by name, in the order that they state."""
    found = [import_module(f"{__name__}.{module.name}").FIGURE for module in iter_modules(__path__)]
    return {figure.name: figure for figure in sorted(found, key=lambda figure: (figure.order, figure.name))}
