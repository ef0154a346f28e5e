"""`dnn2gp tune`."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dnn2gp.apps.cli.shared import Out, Preset, Seed, reported_errors
from dnn2gp.support.errors import InputError


class TaskName(str, Enum):
    """What is predicted."""

    regression = "regression"
    classification = "classification"


def tune(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA", help="A CSV or Parquet file. If omitted, the diabetes data set of scikit-learn is used."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column to predict.")] = None,
    task: Annotated[TaskName, typer.Option(help="Whether the target is a number or a class.")] = TaskName.regression,
    width: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N,...",
            help="Hidden units per layer to try, such as 2,5,10. [default: those of 2,5,10,20,50 that do not make too "
            "many weights]",
        ),
    ] = None,
    depth: Annotated[
        list[str] | None,
        typer.Option(metavar="N,...", help="Hidden layers to try, such as 1,2. [default: 1]"),
    ] = None,
    activation: Annotated[str, typer.Option(metavar="NAME", help="tanh, sigmoid, relu, gelu or silu.")] = "tanh",
    repeats: Annotated[int | None, typer.Option(metavar="N", help="Trainings per setting. [default: 3]")] = None,
    predict: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A table to predict; writes predictions.csv.")
    ] = None,
    impute: Annotated[
        bool,
        typer.Option("--impute", help="Fill in missing cells with the median or the most frequent category."),
    ] = False,
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="A column to leave out. Repeatable.")] = None,
    drop_constant: Annotated[bool, typer.Option("--drop-constant", help="Leave out constant columns.")] = False,
    categorical: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column whose numbers are names, such as codes. Repeatable."),
    ] = None,
    test_share: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Share of the rows held out as test rows for the report; 0 for none."),
    ] = 0.2,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Number of processes. [default: one per processor]")
    ] = None,
    out: Out = Path("dnn2gp-tune"),
    seed: Seed = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the finished jobs in --out.")] = False,
    preset: Annotated[
        Preset, typer.Option(help="smoke: a much smaller run that only shows that everything works.")
    ] = Preset.default,
) -> None:
    """Fit a network to a table, and predict with error bars.

    The width and depth of the network, its prior precision and the noise are chosen by the evidence of the training
    rows. Writes report.html, tuning.json, pictures, the model (model.safetensors and preprocessing.json) and, with
    --predict, predictions.csv. A tuning that was interrupted or killed continues with --resume.
    """
    with reported_errors():
        from dnn2gp.apps import table_tuning as job

        given = {
            "widths": _whole_numbers("width", width),
            "depths": _whole_numbers("depth", depth),
            "repeats": repeats,
            "jobs": jobs,
        }
        config = replace(
            job.TableTuningConfig.preset(preset.value),
            data=data,
            target=target,
            task=task.value,
            activation=activation,
            predict=predict,
            impute=impute,
            drop=tuple(drop or ()),
            drop_constant=drop_constant,
            categorical=tuple(categorical or ()),
            test_share=test_share,
            out=out,
            seed=seed,
            resume=resume,
            **{name: value for name, value in given.items() if value is not None},
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
