"""`dnn2gp train`: train by one or several methods, score them on the test set, print one table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dnn2gp.paper.datasets import load_images
from dnn2gp.paper.training.config import TrainConfig
from dnn2gp.paper.training.training import CHECKPOINT, Score, Training
from dnn2gp.support.errors import InputError
from dnn2gp.support.files import write_text
from dnn2gp.support.progress import show_progress


@dataclass(frozen=True)
class TrainResult:
    """One score per way of predicting."""

    scores: tuple[Score, ...]


def run(
    config: TrainConfig, console: Console | None = None, *, compare: tuple[str, ...] = (), resume: bool = False
) -> TrainResult:
    """Train by `config.method` and those in `compare`, for the same epochs; print a table, write results.json."""
    console = console or Console()
    if len({config.method, *compare}) != 1 + len(compare):
        raise InputError(f"compare: expected methods other than {config.method}, once each; got {', '.join(compare)}.")
    configs = [config, *(config.with_method(method) for method in compare)]
    for each in configs:
        each.check()
        if not resume and (each.folder / CHECKPOINT).exists():
            raise InputError(
                f"{each.folder / CHECKPOINT} already exists, from another training. Continue it with --resume, or "
                "choose another folder (--out)."
            )
    for each in configs:
        try:
            each.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"Cannot create the folder {each.folder}: {error.strerror}. Choose another (--out)."
            ) from error
    images = load_images(config.data)
    scores: list[Score] = []
    with show_progress():
        for each in configs:
            training = Training(each, images, resume=resume)
            if resume and not training.path.exists():
                console.print(f"{training.path} does not exist: {each.method} starts from the beginning.")
            try:
                training.run()
            except KeyboardInterrupt:
                console.print(f"Stopped. {training.path} holds the present state: continue with --resume.")
                raise
            scores += training.scores()
    console.print(table(scores))
    text = json.dumps({"scores": [asdict(score) for score in scores], "config": _plain(config)}, indent=2)
    write_text(config.out / "results.json", text)
    return TrainResult(tuple(scores))


def table(scores: list[Score]) -> Table:
    """One row per way of predicting."""
    result = Table(title="Test set")
    for name, justify in (("method", "left"), ("prediction", "left"), ("accuracy", "right"), ("NLL", "right")):
        result.add_column(name, justify=justify)  # pyright: ignore[reportArgumentType]
    result.add_column("ECE", justify="right")
    result.add_column("training", justify="right")
    for score in scores:
        figures = f"{score.accuracy:.2%}", f"{score.nll:.4f}", f"{score.ece:.4f}", f"{score.seconds:.0f} s"
        result.add_row(score.method, score.prediction, *figures)
    return result


def _plain(config: TrainConfig) -> dict[str, object]:
    own = {name: str(value) if isinstance(value, Path) else value for name, value in vars(config).items()}
    return {**own, "lr": config.rate}
