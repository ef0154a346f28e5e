"""`dnn2gp train`."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dnn2gp.apps.cli.shared import Out, PaperPreset, Seed, reported_errors


class Method(str, Enum):
    """How a network is trained."""

    vogn = "vogn"
    ogn = "ogn"
    adam = "adam"


def train(
    data: Annotated[str, typer.Argument(metavar="DATA", help="The data set; so far only mnist.")] = "mnist",
    optimizer: Annotated[Method, typer.Option(help="The training method.")] = Method.vogn,
    compare: Annotated[
        list[Method] | None,
        typer.Option(metavar="METHOD", help="Another method to train for comparison, for the same epochs. Repeatable."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Passes over the training set. [default: 20]")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Examples per step. [default: 128]")] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Initial learning rate: β in (0, 1] for VOGN and OGN. [default: 0.03; adam: 0.001]",
        ),
    ] = None,
    precision_lr: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Learning rate of the precision (VOGN, OGN). [default: 6 / steps, at most 0.001]",
        ),
    ] = None,
    initial_precision: Annotated[
        float | None,
        typer.Option(metavar="X", help="Initial precision of q (VOGN, OGN). [default: N / (10 T) for N examples]"),
    ] = None,
    prior_precision: Annotated[
        float | None,
        typer.Option(metavar="δ", help="Precision δ of the prior, relative to the summed loss. [default: 3]"),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(metavar="T", help="Temperature T of the posterior p(D|w)^(1/T) p(w). [default: 1]"),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(metavar="X", help="Momentum of the gradients (VOGN, OGN). [default: 0.9]")
    ] = None,
    num_samples: Annotated[
        int | None, typer.Option(metavar="N", help="Weight samples per step (VOGN). [default: 1]")
    ] = None,
    out: Out = Path("dnn2gp-train"),
    seed: Seed = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in --out.")] = False,
    preset: Annotated[
        PaperPreset, typer.Option(help="smoke: a much smaller run that only shows that everything works.")
    ] = PaperPreset.paper,
) -> None:
    """Train LeNet-5 with VOGN, OGN or Adam.

    Prints accuracy, NLL and ECE on the test set, and writes checkpoints and results.json. A training that was
    interrupted or killed continues with --resume and ends with the same weights as an uninterrupted one.
    """
    with reported_errors():
        from dnn2gp.paper import training as job

        given = {
            "epochs": epochs,
            "batch_size": batch_size,
            "lr": lr,
            "precision_lr": precision_lr,
            "initial_precision": initial_precision,
            "prior_precision": prior_precision,
            "temperature": temperature,
            "momentum": momentum,
            "num_samples": num_samples,
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        config = job.TrainConfig.preset(preset.value)
        config = replace(config, data=data, method=optimizer.value, out=out, seed=seed, **chosen)
        job.run(config, Console(), compare=tuple(method.value for method in compare or ()), resume=resume)
