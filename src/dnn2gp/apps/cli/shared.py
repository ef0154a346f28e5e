"""What the commands share: options, and how errors are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from dnn2gp.support.errors import EXPECTED
from dnn2gp.support.numbers import LARGEST_SEED

_FAILED, _INTERRUPTED = 1, 130
_SMOKE = "smoke: a much smaller run, to check that everything works."
Config = TypeVar("Config")

Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Output folder; created if it does not exist.")]
Seed = Annotated[
    int, typer.Option(min=0, max=LARGEST_SEED, metavar="N", help="Random seed; the same seed gives the same results.")
]


class Preset(str, Enum):
    """The size of a demo or a tuning run."""

    default = "default"
    smoke = "smoke"


class PaperPreset(str, Enum):
    """The size of an experiment of the paper."""

    paper = "paper"
    smoke = "smoke"


PresetOption = Annotated[Preset, typer.Option(help=_SMOKE)]
PaperPresetOption = Annotated[PaperPreset, typer.Option(help=f"paper: the sizes of the paper; {_SMOKE}")]


def changed(config: Config, **options: object) -> Config:
    """The configuration, changed by the options that are not None."""
    given = {name: value for name, value in options.items() if value is not None}
    return replace(config, **given)  # pyright: ignore[reportArgumentType, reportCallIssue] (any dataclass)


@contextmanager
def reported_errors() -> Iterator[None]:
    """Show expected errors, and Ctrl-C, as one message; any other error is a bug and keeps its traceback."""
    stderr = Console(stderr=True)
    try:
        yield
    except EXPECTED as error:
        stderr.print(Text.assemble(("Error: ", "bold red"), (str(error), "red")), soft_wrap=True)
        raise typer.Exit(_FAILED) from None
    except KeyboardInterrupt:
        stderr.print("Interrupted. No incomplete files were left behind.")
        raise typer.Exit(_INTERRUPTED) from None
