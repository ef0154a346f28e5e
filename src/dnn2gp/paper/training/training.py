"""A training with checkpoints that can be interrupted and resumed, and its scores on the test set."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import cos, pi
from typing import Any
from zlib import crc32

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from dnn2gp.inference.metrics import accuracy, ece, nll
from dnn2gp.likelihoods import CategoricalLikelihood
from dnn2gp.optim.checkpoints import load_checkpoint, save_checkpoint
from dnn2gp.optim.methods import OGN, VOGN
from dnn2gp.optim.optimizer import OnlineNewtonOptimizer
from dnn2gp.paper.datasets import Images
from dnn2gp.paper.networks import lenet5
from dnn2gp.paper.training.config import TrainConfig
from dnn2gp.support.errors import DivergedError, InputError
from dnn2gp.support.progress import track

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
    """One network trained by one method, and its progress: epoch, batch, seconds."""

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
            averaged = f"average of {self.config.networks} networks ~ q"
            found.append(self._score(averaged, self._sampled(self.optimizer)))
        return found

    def score_at_the_mean(self) -> Score:
        """The score of the network at its present weights."""
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
        cross_entropy(self.network(inputs), labels).backward()
        self.optimizer.step()

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
                f"{self.path} belongs to a different training (differing in {', '.join(differing)}). Resume with the "
                "same settings, or choose another folder (--out)."
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
        values = accuracy(probabilities, labels), nll(probabilities, labels), ece(probabilities, labels)
        return Score(self.config.method, prediction, *values, self.seconds)


@contextmanager
def interrupts_noted() -> Iterator[threading.Event]:
    """Let Ctrl-C set the event, so that the present step is finished first; a second one interrupts at once."""
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
