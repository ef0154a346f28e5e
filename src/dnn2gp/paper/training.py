"""`dnn2gp train`: train LeNet-5 with VOGN, OGN or Adam, resume from checkpoints, and score it on the test set."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import cos, pi
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from jaxtyping import Float
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from dnn2gp.inference.metrics import accuracy, ece, nll
from dnn2gp.likelihoods import CategoricalLikelihood
from dnn2gp.optim.checkpoints import load_checkpoint, save_checkpoint
from dnn2gp.optim.methods import OGN, VOGN
from dnn2gp.optim.optimizer import OnlineNewtonOptimizer
from dnn2gp.paper.datasets import Images, load_images
from dnn2gp.paper.networks import lenet5
from dnn2gp.support.errors import DivergedError, InputError
from dnn2gp.support.files import write_text
from dnn2gp.support.folders import claimed
from dnn2gp.support.numbers import seed_number, whole_number
from dnn2gp.support.progress import show_progress, track
from dnn2gp.weights.online_newton import check_positive, check_rate

METHODS = ("vogn", "ogn", "adam")
_RATES = {"vogn": 0.03, "ogn": 0.03, "adam": 1e-3}


@dataclass(frozen=True)
class TrainConfig:
    """One training run. The learning rate decays to a hundredth of its initial value, along a cosine."""

    data: str = "mnist"
    method: str = "vogn"
    epochs: int = 20
    batch_size: int = 128
    lr: float | None = None
    """β of VOGN and OGN, or Adam's rate; None: the default of the method."""
    precision_lr: float | None = None
    """β' of VOGN and OGN; None: 6 / steps, at most 1e-3.

    A fraction (1 − β')^steps of the initial precision, e⁻⁶ or more, is left at the end; with many data it still counts.
    """
    prior_precision: float = 3.0
    """δ of the summed loss; Adam gets the weight decay δ / N."""
    initial_precision: float | None = None
    """Σ_0⁻¹; None: N / (10 T)."""
    temperature: float = 1.0
    """T of a posterior ∝ p(D|w)^{1/T} p(w); below 1 for little data, where T = 1 stays near the prior."""
    momentum: float = 0.9
    num_samples: int = 1
    networks: int = 30
    """Networks w ~ q whose predictions are averaged."""
    num_train: int | None = None
    """Training examples; None: all."""
    flip: bool = False
    """Whether images are flipped left to right at random, for photographs."""
    checkpoint_seconds: float = 20.0
    seed: int = 0
    out: Path = Path("dnn2gp-train")

    @staticmethod
    def preset(name: str) -> TrainConfig:
        """`paper`, or `smoke`: a small run, to check that everything works."""
        if name == "smoke":
            return TrainConfig(
                epochs=2, batch_size=32, num_train=200, networks=2, temperature=0.01, checkpoint_seconds=0.0
            )
        return TrainConfig()

    @property
    def rate(self) -> float:
        """The initial learning rate."""
        return _RATES[self.method] if self.lr is None else self.lr

    @property
    def folder(self) -> Path:
        """The folder of this method."""
        return self.out / self.method

    def with_method(self, method: str) -> TrainConfig:
        """The same training run with another method and its default learning rate."""
        return replace(self, method=method, lr=None)

    def check(self) -> None:
        """Raise `InputError` for the first setting that is out of range."""
        if self.method not in METHODS:
            raise InputError(f"optimizer: expected one of {', '.join(METHODS)}; got {self.method!r}.")
        for name in ("epochs", "batch_size", "num_samples", "networks"):
            whole_number(name, getattr(self, name))
        seed_number("seed", self.seed)
        if self.num_train is not None and self.num_train < self.batch_size:
            raise InputError(f"batch_size: expected at most num_train = {self.num_train}; got {self.batch_size}.")
        (check_positive if self.method == "adam" else check_rate)("lr", self.rate)
        check_positive("temperature", self.temperature)
        check_positive("prior_precision", self.prior_precision)
        if self.initial_precision is not None:
            check_positive("initial_precision", self.initial_precision)
        if self.precision_lr is not None:
            check_rate("precision_lr", self.precision_lr)
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum: expected a number in [0, 1); got {self.momentum}.")

    def fingerprint(self) -> dict[str, object]:
        """Everything that changes the result, which a checkpoint must agree with to be resumed."""
        left_out = {"out", "checkpoint_seconds", "networks"}
        return {name: value for name, value in vars(self).items() if name not in left_out}


CHECKPOINT = "checkpoint.safetensors"
# Test images that are evaluated at a time.
_CHUNK = 1000


@dataclass(frozen=True)
class Score:
    """How well one way of predicting does on the test set."""

    method: str
    prediction: str
    accuracy: float
    nll: float
    ece: float
    seconds: float
    """Duration of the training."""


class Training:
    """One network trained with one method, and its progress: epoch, batch, seconds."""

    def __init__(self, config: TrainConfig, images: Images, *, resume: bool) -> None:
        self.config, self.images = config, images
        count = len(images.train_labels) if config.num_train is None else config.num_train
        self.inputs, self.labels = images.train_images[:count], images.train_labels[:count]
        _, channels, side, _ = images.train_images.shape
        self.network = lenet5(len(images.classes) or 10, channels, side, config.seed)
        self.optimizer = self._optimizer()
        self.epoch, self.batch, self.seconds = 0, 0, 0.0
        self.path = config.folder / CHECKPOINT
        if resume and self.path.exists():
            self._resume()

    @property
    def batches(self) -> int:
        """Batches per epoch; the last one may be smaller."""
        return -(-len(self.labels) // self.config.batch_size)

    def run(self) -> None:
        """Train to the end, with a checkpoint every few seconds, after every epoch, and on Ctrl-C."""
        with interrupts_noted() as noted:
            self._run(noted)

    def _run(self, noted: threading.Event) -> None:
        begin, saved = time.perf_counter() - self.seconds, time.perf_counter()
        total, done = self.config.epochs * self.batches, self.epoch * self.batches + self.batch
        steps = track(range(done, total), f"training: {self.config.method}", total=total - done)
        order = self._order()
        for position in steps:
            chosen = order[self.batch * self.config.batch_size : (self.batch + 1) * self.config.batch_size]
            try:
                self._step(self._seen(self.inputs[chosen], position), self.labels[chosen], position / total)
            except DivergedError:
                if all(bool(weight.isfinite().all()) for weight in self.network.parameters()):
                    self._save()  # the state before this step
                raise
            self.batch += 1
            if self.batch == self.batches:
                self.epoch, self.batch = self.epoch + 1, 0
                order = self._order()
            now = time.perf_counter()
            if noted.is_set() or self.batch == 0 or now - saved >= self.config.checkpoint_seconds:
                self.seconds = now - begin
                self._save()
                saved = time.perf_counter()
            if noted.is_set():
                raise KeyboardInterrupt

    def scores(self) -> list[Score]:
        """The scores of the network at the mean and, for VOGN and OGN, of the average over networks w ~ q."""
        found = [self.score_at_the_mean()]
        if isinstance(self.optimizer, OnlineNewtonOptimizer):
            averaged = f"average of {self.config.networks} networks drawn from q"
            found.append(self._score(averaged, self._sampled(self.optimizer)))
        return found

    def score_at_the_mean(self) -> Score:
        """The score of the network at its current weights."""
        return self._score("network at the mean", self._probabilities(self.network))

    def _optimizer(self) -> torch.optim.Optimizer:
        config, count = self.config, len(self.labels)
        if config.method == "adam":
            decay = config.prior_precision * config.temperature / count
            return torch.optim.Adam(self.network.parameters(), lr=config.rate, weight_decay=decay)
        kind: Callable[..., OnlineNewtonOptimizer] = VOGN if config.method == "vogn" else OGN
        samples = config.num_samples if config.method == "vogn" else None
        first = count / (10 * config.temperature) if config.initial_precision is None else config.initial_precision
        return kind(
            self.network,
            CategoricalLikelihood(),
            count,
            lr=config.rate,
            precision_lr=self._precision_rate(),
            prior_precision=config.prior_precision,
            initial_precision=first,
            temperature=config.temperature,
            momentum=config.momentum,
            seed=config.seed,
            num_samples=samples,
        )

    def _precision_rate(self) -> float:
        steps = self.config.epochs * self.batches
        return min(1e-3, 6 / steps) if self.config.precision_lr is None else self.config.precision_lr

    def _step(self, inputs: Tensor, labels: Tensor, progress: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate * (0.01 + 0.99 * 0.5 * (1 + cos(pi * progress)))
        if isinstance(self.optimizer, OnlineNewtonOptimizer):
            self.optimizer.step(inputs, labels)
            return
        self.optimizer.zero_grad()
        loss = cross_entropy(self.network(inputs), labels)
        if not loss.isfinite():
            raise self._diverged("loss", loss.item())
        loss.backward()
        try:
            self.optimizer.step()
        except RuntimeError as error:
            if "overflow" not in str(error):
                raise
            raise self._diverged("step", float("inf")) from error

    def _diverged(self, what: str, value: float) -> DivergedError:
        return DivergedError(
            f"lr: training by {self.config.method} has diverged: the {what} is {value} in epoch {self.epoch + 1}. Use "
            f"a smaller learning rate (--lr) than {self.config.rate:g}, in another folder (--out)."
        )

    def _seen(self, inputs: Float[Tensor, "n C H W"], position: int) -> Float[Tensor, "n C H W"]:
        """The images of a batch, flipped left to right at random; depends on seed and position alone."""
        if not self.config.flip:
            return inputs
        generator = torch.Generator().manual_seed(2**40 + 1_000_003 * self.config.seed + position)
        turned = torch.rand(len(inputs), 1, 1, 1, generator=generator) < 0.5
        return torch.where(turned, inputs.flip(3), inputs)

    def _order(self) -> Tensor:
        """The order of the examples in this epoch; depends on seed and epoch alone."""
        generator = torch.Generator().manual_seed(1_000_003 * self.config.seed + self.epoch)
        return torch.randperm(len(self.labels), generator=generator)

    def _save(self) -> None:
        tree: dict[str, Any] = {
            "config": self._fingerprint,
            "network": dict(self.network.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "batch": self.batch,
            "seconds": self.seconds,
        }
        save_checkpoint(self.path, tree)

    def _resume(self) -> None:
        tree = load_checkpoint(self.path)
        own, kept = self._fingerprint, tree.get("config", {})
        if kept != own:
            differing = [name for name, value in own.items() if kept.get(name) != value]
            raise InputError(
                f"{self.path} belongs to a different training run (it differs in {', '.join(differing)}). Resume "
                "with the same settings, or choose another folder (--out)."
            )
        self.network.load_state_dict(tree["network"])
        self.optimizer.load_state_dict(tree["optimizer"])
        self.epoch, self.batch, self.seconds = tree["epoch"], tree["batch"], tree["seconds"]

    @cached_property
    def _fingerprint(self) -> dict[str, object]:
        """Everything that the weights depend on, including the images."""
        content = crc32(self.labels.contiguous().numpy().data, crc32(self.inputs.contiguous().numpy().data))
        return {**self.config.fingerprint(), "images": content}

    def _probabilities(self, network: Callable[[Tensor], Tensor]) -> Float[Tensor, "N K"]:
        with torch.no_grad():
            return torch.cat([network(part).softmax(-1) for part in self.images.test_images.split(_CHUNK)])

    def _sampled(self, optimizer: OnlineNewtonOptimizer) -> Float[Tensor, "N K"]:
        """(1/S) Σ_s softmax f_{w_s}(x), w_s ~ q: the DNN-VI baseline."""
        parts = self.images.test_images.split(_CHUNK)
        seed, count = self.config.seed, self.config.networks
        found = [optimizer.sample_network(part, count, torch.Generator().manual_seed(seed)).mean for part in parts]
        return torch.cat(found)

    def _score(self, prediction: str, probabilities: Float[Tensor, "N K"]) -> Score:
        labels = self.images.test_labels
        if not probabilities.isfinite().all():
            raise self._diverged("predicted probability", float("nan"))
        values = accuracy(probabilities, labels), nll(probabilities, labels), ece(probabilities, labels)
        return Score(self.config.method, prediction, *values, self.seconds)


@contextmanager
def interrupts_noted() -> Iterator[threading.Event]:
    """Let Ctrl-C set the event, so that the current step is finished first; a second one interrupts at once."""
    noted = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield noted  # signals belong to another thread, or are ignored, as in a background job
        return

    def note(number: int, frame: object) -> None:
        noted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class TrainResult:
    """One score per way of predicting."""

    scores: tuple[Score, ...]


def run(
    config: TrainConfig, console: Console | None = None, *, compare: tuple[str, ...] = (), resume: bool = False
) -> TrainResult:
    """Train with `config.method` and those in `compare`, for the same epochs; print a table, write results.json."""
    console = console or Console()
    if len({config.method, *compare}) != 1 + len(compare):
        raise InputError(f"compare: expected methods other than {config.method}, once each; got {', '.join(compare)}.")
    configs = [config, *(config.with_method(method) for method in compare)]
    for each in configs:
        each.check()
    _create_folders(configs)
    with claimed(config.out):
        return _run(configs, console, resume)


def _create_folders(configs: Sequence[TrainConfig]) -> None:
    for each in configs:
        try:
            each.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"Cannot create the folder {each.folder}: {error.strerror}. Choose another folder (--out)."
            ) from error


def _run(configs: Sequence[TrainConfig], console: Console, resume: bool) -> TrainResult:
    """`run` after its checks, in a folder that no other process works in."""
    for each in configs:
        if not resume and (each.folder / CHECKPOINT).exists():
            raise InputError(
                f"{each.folder / CHECKPOINT} already exists, from another training run. Continue that run with "
                "--resume, or choose another folder (--out)."
            )
    config = configs[0]
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
                console.print(f"Stopped. The current state is in {training.path}. Continue with --resume.")
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
