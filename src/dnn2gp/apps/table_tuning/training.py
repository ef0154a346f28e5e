"""Train a network on encoded rows, with δ and σ chosen by the evidence, and evaluate it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from math import inf, nan

import torch
from torch import nn

from dnn2gp.apps.table_tuning.problem import TableRows
from dnn2gp.apps.table_tuning.tasks import Task
from dnn2gp.gp.convert import convert
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.network.mlp import mlp
from dnn2gp.support.errors import DivergedError, NotAMinimumWarning, NotPositiveDefiniteError
from dnn2gp.tune.restarts import Fitted, fit_restarts

# Significant digits of the values that are kept; further digits depend on memory alignment and vary between runs.
_DIGITS = 10
_DIVERGED = (DivergedError, NotPositiveDefiniteError, torch.linalg.LinAlgError)


@dataclass(frozen=True)
class Architecture:
    """The sizes of a multi-layer perceptron."""

    num_inputs: int
    num_outputs: int
    width: int
    depth: int
    activation: str

    def build(self) -> nn.Module:
        """A new network with random weights, in float64."""
        sizes = {"width": self.width, "depth": self.depth}
        return mlp(self.num_inputs, self.num_outputs, **sizes, activation=self.activation).double()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight of the network by name, without building it."""
        sizes = [self.num_inputs, *[self.width] * self.depth, self.num_outputs]
        found: dict[str, tuple[int, ...]] = {}
        for position, (before, after) in enumerate(pairwise(sizes)):
            found |= {f"{2 * position}.weight": (after, before), f"{2 * position}.bias": (after,)}
        return found


@dataclass(frozen=True)
class TableEffort:
    """The effort of a training run."""

    restarts: int
    max_rounds: int
    seed: int

    def train(self, architecture: Architecture, rows: TableRows, task: Task, repeat: int) -> Fitted:
        """Train from several starts and keep the best; each repeat has other starts."""
        return fit_restarts(
            architecture.build,
            rows.inputs,
            rows.targets,
            task.likelihood,
            restarts=self.restarts,
            seed=10_000 * self.seed + repeat,
            max_rounds=self.max_rounds,
        )


def converted(fitted: Fitted, rows: TableRows) -> GaussianProcess:
    """The trained network as a GP, without the warning about minima: `diagnose` reports on that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAMinimumWarning)
        return convert(
            fitted.network,
            (rows.inputs, rows.targets),
            fitted.likelihood,
            fitted.prior_precision,
            structure=fitted.structure,
        )


@dataclass(frozen=True, eq=False)
class TableFit:
    """The function of the grid: train and evaluate one setting."""

    task: Task
    training: TableRows
    held_out: TableRows
    activation: str
    effort: TableEffort

    def architecture(self, width: int, depth: int) -> Architecture:
        """The network with this width and depth."""
        return Architecture(self.training.inputs.shape[1], self.task.num_outputs, width, depth, self.activation)

    def train(self, width: int, depth: int, repeat: int) -> Fitted:
        """Train the network with this width and depth."""
        return self.effort.train(self.architecture(width, depth), self.training, self.task, repeat)

    def __call__(self, width: int, depth: int, repeat: int) -> dict[str, float]:
        """The evidence, the errors, δ and σ; the evidence of a training run that diverged is −∞."""
        try:
            fitted = self.train(width, depth, repeat)
            gp = converted(fitted, self.training)
        except _DIVERGED:
            return {name: -inf if name == "evidence" else nan for name in self._names}
        found = {"evidence": fitted.evidence, "prior_precision": fitted.prior_precision}
        found |= self.task.noise(fitted.likelihood)
        for name, rows in self._parts.items():
            scores = self.task.scores(gp.predict(rows.inputs), rows.targets)
            found |= {f"{name}_{key}": value for key, value in scores.items()}
        found["relative_gradient"] = fitted.relative_gradient
        return {name: float(f"{value:.{_DIGITS}g}") for name, value in found.items()}

    @property
    def _parts(self) -> dict[str, TableRows]:
        return {"train": self.training, "test": self.held_out} if len(self.held_out) else {"train": self.training}

    @property
    def _names(self) -> list[str]:
        scores = [f"{part}_{score}" for part in self._parts for score in ("error", "log_likelihood")]
        return ["evidence", "prior_precision", *self.task.noise(None), *scores, "relative_gradient"]
