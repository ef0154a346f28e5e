"""The `dnn2gp` command, with `demo` and `reproduce`; the longer subcommands have files of their own."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dnn2gp.apps.cli.shared import (
    Out,
    PaperPreset,
    PaperPresetOption,
    Preset,
    PresetOption,
    Seed,
    changed,
    reported_errors,
)
from dnn2gp.apps.cli.train import train
from dnn2gp.apps.cli.tune import tune
from dnn2gp.support.errors import InputError


def demo(
    out: Out = Path("dnn2gp-demo"),
    seed: Seed = 0,
    preset: PresetOption = Preset.default,
) -> None:
    """Train a network on handwritten digits, and turn it into a GP.

    Compares the two on digits and on images that are none, and takes about a minute. Writes familiarity.png,
    kernel.png, posterior_mean.png, uncertainty.png and gp.safetensors.
    """
    with reported_errors():
        from dnn2gp.apps import demo as job

        job.run(changed(job.DemoConfig.preset(preset.value), out=out, seed=seed), Console())


def _figures() -> str:
    """The names of all figures, with what each one is, from the first words of their modules; nothing is imported."""
    folder = Path(__file__).parents[2] / "paper" / "figures"
    modules = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
    return ", ".join(f"{path.stem} ({_first_words(path)})" for path in modules)


def _first_words(module: Path) -> str:
    return module.read_text(encoding="utf-8").removeprefix('"""').partition(":")[0]


def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(
            metavar="FIGURE",
            help=f"all, or any of: {_figures()}.",
        ),
    ],
    preset: PaperPresetOption = PaperPreset.paper,
    out: Out = Path("dnn2gp-figures"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the finished figures in --out and compute the rest.")
    ] = False,
) -> None:
    """Reproduce figures of the paper on its data.

    Writes report.html (what the paper says and what was measured, with interactive maps), pictures/ (PNG and PDF),
    results/ (npz and JSON) and weights/ (the trained networks) to a folder in --out that is named after the
    preset. Use --resume to continue a run that was interrupted or killed. All figures together take about an hour on
    two cores.
    """
    with reported_errors():
        from dnn2gp.paper import reproduce as job

        try:
            found = job.run(job.ReproduceConfig(tuple(figures), preset.value, out, resume), Console())
        except KeyboardInterrupt:
            Console(stderr=True).print("Stopped. Continue with --resume.")
            raise
        if found.failures:
            raise InputError(f"These figures could not be made: {', '.join(found.failures)}.")


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
