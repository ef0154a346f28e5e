"""The command line. Heavy libraries are imported by the commands that need them, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from dnn2gp.support.errors import EXPECTED, InputError
from dnn2gp.support.optional import needs_extra

with needs_extra("cli", "The command line"):
    import typer
    from rich.console import Console
    from rich.text import Text

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
        from dnn2gp.apps.demo import DemoConfig, run

        run(replace(DemoConfig.preset(preset.value), out=out, seed=seed), Console())


class TrainPreset(str, Enum):
    """How much `train` does."""

    paper = "paper"
    smoke = "smoke"


class Method(str, Enum):
    """How a network is trained."""

    vogn = "vogn"
    ogn = "ogn"
    adam = "adam"


@app.command(epilog="Example:  dnn2gp train mnist --optimizer vogn --beside adam --out results")
def train(
    data: Annotated[str, typer.Argument(help="The data: mnist.")] = "mnist",
    optimizer: Annotated[Method, typer.Option(help="The method.")] = Method.vogn,
    beside: Annotated[list[Method] | None, typer.Option(help="Methods to train for the same epochs beside it.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training set.", show_default="20")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Examples of a step.", show_default="128")] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="The first learning rate: β, in (0, 1]; Adam's own for Adam.", show_default="0.03; Adam 0.001"
        ),
    ] = None,
    precision_lr: Annotated[
        float | None,
        typer.Option(help="The rate of the precision (VOGN, OGN).", show_default="6 / steps, at most 0.001"),
    ] = None,
    initial_precision: Annotated[
        float | None, typer.Option(help="The first precision of q (VOGN, OGN).", show_default="N / 10 T")
    ] = None,
    prior_precision: Annotated[
        float | None, typer.Option(help="δ of the prior, on the summed loss.", show_default="3")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="T of a posterior ∝ p(D|w)^{1/T} p(w).", show_default="1")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Of past gradients (VOGN, OGN).", show_default="0.9")] = None,
    num_samples: Annotated[
        int | None, typer.Option(min=1, help="Samples of q a step (VOGN).", show_default="1")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints and results.json.")] = Path("dnn2gp-train"),
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")] = False,
    preset: Annotated[
        TrainPreset, typer.Option(help="smoke: a little of it, to see that it works.")
    ] = TrainPreset.paper,
) -> None:
    """Train LeNet-5 by VOGN, OGN or Adam; write checkpoints; print accuracy, NLL and ECE on the test set.

    A training that was interrupted, or killed, goes on with --resume and ends with the weights of one that was not.
    """
    with _clear_errors():
        from dnn2gp.paper.training import TrainConfig, run

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
        config = replace(
            TrainConfig.preset(preset.value), data=data, method=optimizer.value, out=out, seed=seed, **chosen
        )
        run(config, Console(), beside=tuple(method.value for method in beside or ()), resume=resume)


class TaskName(str, Enum):
    """What `tune` predicts."""

    regression = "regression"
    classification = "classification"


@app.command(epilog="Example:  dnn2gp tune wine.csv --target quality --predict more.csv --out results")
def tune(
    data: Annotated[
        Path | None, typer.Argument(help="A CSV or Parquet file. Without: scikit-learn's diabetes.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    task: Annotated[
        TaskName, typer.Option(help="Whether the target is a number or one of some classes.")
    ] = TaskName.regression,
    width: Annotated[
        list[str] | None,
        typer.Option(
            help="Hidden units to try: 2,5,10, or repeat it.",
            show_default="2,5,10,20,50, without those of many weights",
        ),
    ] = None,
    depth: Annotated[
        list[str] | None, typer.Option(help="Hidden layers to try: 1,2, or repeat it.", show_default="1")
    ] = None,
    activation: Annotated[str, typer.Option(help="tanh, sigmoid, relu, gelu or silu.")] = "tanh",
    repeats: Annotated[int | None, typer.Option(min=1, help="Trainings of every setting.", show_default="3")] = None,
    predict: Annotated[Path | None, typer.Option(help="A table to predict, into predictions.csv.")] = None,
    impute: Annotated[bool, typer.Option("--impute", help="Fill missing cells: median, or the most frequent.")] = False,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; repeat it for more.")] = None,
    drop_constant: Annotated[bool, typer.Option("--drop-constant", help="Leave out columns that never vary.")] = False,
    categorical: Annotated[list[str] | None, typer.Option(help="A column whose numbers are names; repeat it.")] = None,
    test_share: Annotated[float, typer.Option(help="Rows held out for the report, never to choose by; 0: none.")] = 0.2,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each processor.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for all files; made if it does not exist.")] = Path("dnn2gp-tune"),
    seed: Annotated[int, typer.Option(min=0, help="Of everything random: the same seed gives the same numbers.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the finished jobs in --out.")] = False,
    preset: Annotated[Preset, typer.Option(help="smoke: everything small, to see that it works.")] = Preset.default,
) -> None:
    """Fit a network to a table of your own, its size, prior and noise chosen by the evidence; predict with error bars.

    Writes report.html, tuning.json, the model (model.safetensors, preprocessing.json), pictures, and predictions.csv. A
    tuning that was interrupted, or killed, goes on with --resume.
    """
    with _clear_errors():
        from dnn2gp.apps.table_tuning import TableTuningConfig, run

        given = {
            "widths": _whole_numbers("width", width),
            "depths": _whole_numbers("depth", depth),
            "repeats": repeats,
            "jobs": jobs,
        }
        config = replace(
            TableTuningConfig.preset(preset.value),
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
        run(config, Console())


@app.command(epilog="Example:  dnn2gp reproduce moons --out figures    or:  dnn2gp reproduce all --preset smoke")
def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(
            metavar="FIGURE...",
            help="all, or some of: two_d (Fig. 2), snelson (3), mnist (4a, 7), binary_mnist (4c), cifar (4b, 4d, 7, "
            "8), synthetic (5), wine (6), moons (9), width and ood (beyond the paper).",
        ),
    ],
    preset: Annotated[
        TrainPreset, typer.Option(help="paper: the paper's sizes; smoke: a little of it, to see that it works.")
    ] = TrainPreset.paper,
    out: Annotated[Path, typer.Option(help="Folder for all files; made if it does not exist.")] = Path(
        "dnn2gp-figures"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep finished figures and trainings in --out, and go on after them.")
    ] = False,
) -> None:
    """Make figures of the paper anew, on its data, and a report of what the paper says and what was measured.

    Writes into a folder of the preset in --out: report.html (one file, with maps to point at), pictures/ as PNG and
    PDF, results/ as npz and JSON, and weights/ of the trained networks. A run that was interrupted, or killed, goes on
    with --resume. Figures are made in the order of the paper; all of it takes about an hour on two cores.
    """
    with _clear_errors():
        from dnn2gp.paper.reproduce import ReproduceConfig, run

        try:
            found = run(ReproduceConfig(tuple(figures), preset.value, out, resume), Console())
        except KeyboardInterrupt:
            Console(stderr=True).print("Stopped. Go on with --resume.")
            raise
        if found.failures:
            raise InputError(f"These figures could not be made: {', '.join(found.failures)}.")


def _whole_numbers(name: str, given: list[str] | None) -> tuple[int, ...] | None:
    """2,5,10 as numbers; also from an option that was repeated."""
    if not given:
        return None
    texts = [text for each in given for text in each.replace(",", " ").split()]
    if not texts or not all(text.isdecimal() for text in texts):
        raise InputError(f"{name}: expected whole numbers, such as 2,5,10; got {', '.join(given)}.")
    return tuple(int(text) for text in texts)


def run() -> None:
    """Parse the arguments and run the command."""
    app()


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Errors of dnn2gp and of the file system as one message; anything else is a bug and keeps its traceback."""
    stderr = Console(stderr=True)
    try:
        yield
    except EXPECTED as error:
        stderr.print(Text.assemble(("Error: ", "bold red"), (str(error), "red")), soft_wrap=True)
        raise typer.Exit(_FAILED) from None
    except KeyboardInterrupt:
        stderr.print("Interrupted. No file was left half written.")
        raise typer.Exit(_INTERRUPTED) from None
