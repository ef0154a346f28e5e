"""`dnn2gp train`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dnn2gp.apps.cli.shared import Out, PaperPreset, PaperPresetOption, Seed, changed, reported_errors


class Method(str, Enum):
    """How a network is trained."""

    vogn = "vogn"
    ogn = "ogn"
    adam = "adam"


Data = Annotated[str, typer.Argument(metavar="DATA", help="The data set; only mnist is supported so far.")]
Optimizer = Annotated[Method, typer.Option(help="The training method.")]
Compare = Annotated[
    list[Method] | None,
    typer.Option(metavar="METHOD", help="Another method to train, for the same number of epochs. Repeatable."),
]
Epochs = Annotated[int | None, typer.Option(metavar="N", help="Passes over the training set. [default: 20]")]
BatchSize = Annotated[int | None, typer.Option(metavar="N", help="Examples per step. [default: 128]")]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="RATE", help="Initial learning rate: β in (0, 1] for VOGN and OGN. [default: 0.03; adam: 0.001]"
    ),
]
PrecisionRate = Annotated[
    float | None,
    typer.Option(
        metavar="RATE", help="Learning rate of the precision (VOGN, OGN). [default: 6 / steps, at most 0.001]"
    ),
]
InitialPrecision = Annotated[
    float | None,
    typer.Option(metavar="X", help="Initial precision of q (VOGN, OGN). [default: N / (10 T) for N examples]"),
]
PriorPrecision = Annotated[
    float | None, typer.Option(metavar="δ", help="Prior precision δ, for the summed loss. [default: 3]")
]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="Temperature T of the posterior p(D|w)^(1/T) p(w). [default: 1]")
]
Momentum = Annotated[
    float | None, typer.Option(metavar="X", help="Momentum of the gradients (VOGN, OGN). [default: 0.9]")
]
NumSamples = Annotated[int | None, typer.Option(metavar="N", help="Weight samples per step (VOGN). [default: 1]")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in --out.")]


def train(
    data: Data = "mnist",
    optimizer: Optimizer = Method.vogn,
    compare: Compare = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: Rate = None,
    precision_lr: PrecisionRate = None,
    initial_precision: InitialPrecision = None,
    prior_precision: PriorPrecision = None,
    temperature: Temperature = None,
    momentum: Momentum = None,
    num_samples: NumSamples = None,
    out: Out = Path("dnn2gp-train"),
    seed: Seed = 0,
    resume: Resume = False,
    preset: PaperPresetOption = PaperPreset.paper,
) -> None:
    """Train LeNet-5 with VOGN, OGN or Adam.

    Prints accuracy, NLL and ECE on the test set, and writes checkpoints and results.json. Use --resume to
    continue a run that was interrupted or killed; it ends with the same weights as an uninterrupted run.
    """
    with reported_errors():
        from dnn2gp.paper import training as job

        config = changed(
            job.TrainConfig.preset(preset.value),
            **{"data": data, "method": optimizer.value, "epochs": epochs, "batch_size": batch_size},
            **{"lr": lr, "precision_lr": precision_lr, "momentum": momentum, "num_samples": num_samples},
            **{"initial_precision": initial_precision, "prior_precision": prior_precision, "temperature": temperature},
            **{"out": out, "seed": seed},
        )
        job.run(config, Console(), compare=tuple(method.value for method in compare or ()), resume=resume)
