"""The command line. Heavy libraries are imported by the commands that need them, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dnn2gp.errors import FileFormatError, InputError, MemoryBudgetError, NetworkError, NotPositiveDefiniteError

_ERRORS = (InputError, NetworkError, NotPositiveDefiniteError, MemoryBudgetError, FileFormatError, OSError)
_FAILED, _INTERRUPTED = 1, 130

app = typer.Typer(
    name="dnn2gp",
    help="Turn neural networks into Gaussian processes.\n\nExample:  dnn2gp demo --out results",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Preset(str, Enum):
    """How much the demo does."""

    default = "default"
    smoke = "smoke"


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"dnn2gp {version('dnn2gp')}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example:  dnn2gp demo --out results --seed 1")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the GP; made if it does not exist.")] = Path(
        "dnn2gp-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of everything random: the same seed gives the same numbers.")] = 0,
    preset: Annotated[Preset, typer.Option(help="smoke: everything small, to see that it works.")] = Preset.default,
) -> None:
    """Train a small network on handwritten digits, turn it into a GP, and compare, draw and save.

    Takes less than a minute. Writes kernel.png, posterior_mean.png, uncertainty.png, uncertainty_maps.png and
    gp.safetensors.
    """
    with _clear_errors():
        from dnn2gp.demo import DemoConfig, run

        run(replace(DemoConfig.preset(preset.value), out=out, seed=seed), Console())


def main() -> None:
    """The entry point of the `dnn2gp` command."""
    app()


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Errors of dnn2gp and of the file system as one message; anything else is a bug and keeps its traceback."""
    stderr = Console(stderr=True)
    try:
        yield
    except _ERRORS as error:
        stderr.print(Text.assemble(("Error: ", "bold red"), (str(error), "red")), soft_wrap=True)
        raise typer.Exit(_FAILED) from None
    except KeyboardInterrupt:
        stderr.print("Interrupted. No file was left half written.")
        raise typer.Exit(_INTERRUPTED) from None
