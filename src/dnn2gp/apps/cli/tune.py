"""`dnn2gp tune`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dnn2gp.apps.cli.shared import Out, Preset, PresetOption, Seed, changed, reported_errors
from dnn2gp.support.errors import InputError


class TaskName(str, Enum):
    """What is predicted."""

    regression = "regression"
    classification = "classification"


Data = Annotated[
    Path | None,
    typer.Argument(
        metavar="DATA", help="A CSV or Parquet file. If omitted, the diabetes data set of scikit-learn is used."
    ),
]
Target = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column to predict.")]
Task = Annotated[TaskName, typer.Option(help="Whether the target is a number or a class.")]
Width = Annotated[
    list[str] | None,
    typer.Option(
        metavar="N,...",
        help="Hidden units per layer to try, such as 2,5,10. [default: 2,5,10,20,50, without those that give too "
        "many weights]",
    ),
]
Depth = Annotated[
    list[str] | None, typer.Option(metavar="N,...", help="Hidden layers to try, such as 1,2. [default: 1]")
]
Activation = Annotated[str, typer.Option(metavar="NAME", help="tanh, sigmoid, relu, gelu or silu.")]
Repeats = Annotated[int | None, typer.Option(metavar="N", help="Training runs per setting. [default: 3]")]
Predict = Annotated[Path | None, typer.Option(metavar="FILE", help="A table to predict; writes predictions.csv.")]
Impute = Annotated[
    bool, typer.Option("--impute", help="Fill in missing cells with the median or the most frequent category.")
]
Drop = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="A column to leave out. Repeatable.")]
DropConstant = Annotated[bool, typer.Option("--drop-constant", help="Leave out constant columns.")]
Categorical = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="A numeric column to treat as categories, such as codes. Repeatable."),
]
TestShare = Annotated[
    float, typer.Option(metavar="SHARE", help="Share of the rows held out as test rows for the report; 0 for none.")
]
Jobs = Annotated[int | None, typer.Option(metavar="N", help="Number of processes. [default: one per processor]")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the finished jobs in --out.")]


def tune(
    data: Data = None,
    target: Target = None,
    task: Task = TaskName.regression,
    width: Width = None,
    depth: Depth = None,
    activation: Activation = "tanh",
    repeats: Repeats = None,
    predict: Predict = None,
    impute: Impute = False,
    drop: Drop = None,
    drop_constant: DropConstant = False,
    categorical: Categorical = None,
    test_share: TestShare = 0.2,
    jobs: Jobs = None,
    out: Out = Path("dnn2gp-tune"),
    seed: Seed = 0,
    resume: Resume = False,
    preset: PresetOption = Preset.default,
) -> None:
    """Fit a network to a table, and predict with error bars.

    The width and depth of the network, its prior precision and the noise are chosen by the evidence of the training
    rows. Writes report.html, tuning.json, pictures, the model (model.safetensors and preprocessing.json) and, with
    --predict, predictions.csv. Use --resume to continue a run that was interrupted or killed.
    """
    with reported_errors():
        from dnn2gp.apps import table_tuning as job

        config = changed(
            job.TableTuningConfig.preset(preset.value),
            **{"data": data, "target": target, "task": task.value, "activation": activation},
            **{"widths": _whole_numbers("width", width), "depths": _whole_numbers("depth", depth)},
            **{"repeats": repeats, "predict": predict, "impute": impute, "test_share": test_share, "jobs": jobs},
            **{"drop": tuple(drop or ()), "drop_constant": drop_constant, "categorical": tuple(categorical or ())},
            **{"out": out, "seed": seed, "resume": resume},
        )
        job.run(config, Console())


def _whole_numbers(name: str, given: list[str] | None) -> tuple[int, ...] | None:
    """2,5,10 as numbers; an option that is repeated adds to them."""
    if not given:
        return None
    texts = [text for each in given for text in each.replace(",", " ").split()]
    if not texts or not all(text.isdecimal() for text in texts):
        raise InputError(f"{name}: expected whole numbers, such as 2,5,10; got {', '.join(given)}.")
    return tuple(int(text) for text in texts)
