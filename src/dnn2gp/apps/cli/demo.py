"""`dnn2gp demo`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dnn2gp.apps.cli.shared import Out, Preset, Seed, reported_errors


def demo(
    out: Out = Path("dnn2gp-demo"),
    seed: Seed = 0,
    preset: Annotated[
        Preset, typer.Option(help="smoke: a much smaller run that only shows that everything works.")
    ] = Preset.default,
) -> None:
    """Train a network on handwritten digits, and turn it into a GP.

    Compares the predictions of the two, and takes less than a minute. Writes kernel.png, posterior_mean.png,
    uncertainty.png, uncertainty_maps.png and gp.safetensors.
    """
    with reported_errors():
        from dnn2gp.apps import demo as job

        job.run(replace(job.DemoConfig.preset(preset.value), out=out, seed=seed), Console())
