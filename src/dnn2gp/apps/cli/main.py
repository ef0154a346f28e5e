"""The `dnn2gp` command and its subcommands."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from dnn2gp.apps.cli.demo import demo
from dnn2gp.apps.cli.reproduce import reproduce
from dnn2gp.apps.cli.train import train
from dnn2gp.apps.cli.tune import tune

app = typer.Typer(
    name="dnn2gp",
    help="Turn neural networks into Gaussian processes.",
    epilog="Example: dnn2gp demo --out results",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: the boxes of rich show a flag as an option that takes a <bool>
    context_settings={"max_content_width": 100},
)
app.command(epilog="Example: dnn2gp demo --out results --seed 1")(demo)
app.command(epilog="Example: dnn2gp tune wine.csv --target quality --predict more.csv --out results")(tune)
app.command(epilog="Example: dnn2gp train mnist --optimizer vogn --compare adam --out results")(train)
app.command(epilog="Examples: dnn2gp reproduce moons; dnn2gp reproduce all --preset smoke --out figures")(reproduce)


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


def run() -> None:
    """Parse the arguments and run the command."""
    app(prog_name="dnn2gp")
