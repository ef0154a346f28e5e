"""What is measured: a case is one quantity, with ours and the peers' ways to compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[], object]
Prepare = Callable[[], Run]

OURS = "dnn2gp"


def same(ours: object) -> object:
    """The peer computes the same quantity as ours."""
    return ours


@dataclass(frozen=True)
class Settings:
    """What the command line decides: tiny sizes or real ones, and which engine of dnn2gp is measured."""

    quick: bool = False
    engine: str = "LayerwiseFeatures"

    def size(self, nominal: int) -> int:
        """The number of examples: as named, or a fiftieth of it (4 to 20) in a smoke run."""
        return min(nominal, min(20, max(4, nominal // 50))) if self.quick else nominal


@dataclass(frozen=True)
class Implementation:
    """One way to compute the quantity of a case.

    variants    settings among which the fastest is chosen before anything is measured (a batch size, say). Each is a
                function that prepares untimed what is paid once (imports, compilation) and returns the timed call
    expected    what our result (of the whole case) says about this one; None where there is nothing to compare
    scale       where only a part of the work is measured and the cost is linear: the whole is `scale` times the part
    operations  floating-point operations of the timed call, where they are counted
    note        what a reader of the table has to know
    """

    name: str
    variants: dict[str, Prepare]
    expected: Callable[..., object] | None = same
    scale: float = 1.0
    operations: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Case:
    """One quantity at one size. The first implementation is ours: the others are compared with it.

    name        "group/point", the same in a smoke run
    title       the work in words, with the sizes that are really measured
    axis, x     in a family for a plot of growth: the name of the axis and where on it this case is
    """

    name: str
    title: str
    tolerance: float
    implementations: tuple[Implementation, ...]
    axis: str = ""
    x: float = 0.0

    @property
    def group(self) -> str:
        """The part of the name before the slash."""
        return self.name.split("/")[0]

    def find(self, implementation: str) -> Implementation:
        """The implementation of that name."""
        return next(each for each in self.implementations if each.name == implementation)


def single(name: str, run: Run, **options: object) -> Implementation:
    """An implementation without variants whose preparation is done by its first call, the warm-up."""
    return Implementation(name, {"": lambda: run}, **options)  # type: ignore[arg-type]
