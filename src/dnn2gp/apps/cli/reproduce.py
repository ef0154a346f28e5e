"""`dnn2gp reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dnn2gp.apps.cli.shared import Out, PaperPreset, PaperPresetOption, reported_errors
from dnn2gp.support.errors import InputError


def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(
            metavar="FIGURE",
            help="all, or any of: two_d (Fig. 2), snelson (3), mnist (4a, 7), binary_mnist (4c), cifar (4b, 4d, 7, 8), "
            "synthetic (5), wine (6), moons (9), width and ood (not in the paper).",
        ),
    ],
    preset: PaperPresetOption = PaperPreset.paper,
    out: Out = Path("dnn2gp-figures"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what is finished in --out, and compute the rest.")
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
