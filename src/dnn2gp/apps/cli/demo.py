"""`dnn2gp demo`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from dnn2gp.apps.cli.shared import Out, Preset, PresetOption, Seed, changed, reported_errors


def demo(
    out: Out = Path("dnn2gp-demo"),
    seed: Seed = 0,
    preset: PresetOption = Preset.default,
) -> None:
    """Train a network on handwritten digits, and turn it into a GP.

    Compares the predictions of the two, and takes less than a minute. Writes kernel.png, posterior_mean.png,
    uncertainty.png, uncertainty_maps.png and gp.safetensors.
    """
    with reported_errors():
        from dnn2gp.apps import demo as job

        job.run(changed(job.DemoConfig.preset(preset.value), out=out, seed=seed), Console())
