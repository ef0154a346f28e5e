"""GPs along training: a hook that keeps the GP of iteration t, on a few examples, at steps of one's choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.network.data import read_data
from dnn2gp.optim.optimizers import OnlineNewtonOptimizer
from dnn2gp.support.errors import InputError
from dnn2gp.weights.online_newton import State


@dataclass(frozen=True, eq=False)
class Record:
    """q_t and the GP of iteration t."""

    step: int
    state: State
    gp: GaussianProcess


class Recorder:
    """Keeps the GP after some steps: `optimizer.register_step_post_hook(recorder)`.

    data         a few of the training examples, which stand for all: the cost of a record is that of a GP of these
    steps        after which steps
    beta         of the linear models (see `OnlineNewtonOptimizer.gaussian_process`)
    num_samples  of q_t
    seed         of the samples, the same for every record, so that what changes is q_t
    """

    def __init__(
        self,
        data: object,
        steps: Iterable[int],
        *,
        beta: float | None = None,
        num_samples: int | None = None,
        seed: int = 0,
    ) -> None:
        self.data, self.steps = read_data(data), frozenset(steps)
        if not self.steps or min(self.steps) < 1:
            raise InputError(f"steps: expected the numbers of some steps, from 1 on; got {sorted(self.steps)}.")
        self.beta, self.num_samples, self.seed = beta, num_samples, seed
        self.records: list[Record] = []

    def __call__(self, optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After a step."""
        if not isinstance(optimizer, OnlineNewtonOptimizer):
            raise InputError(f"Recorder: expected an online-Newton optimizer; got {type(optimizer).__name__}.")
        state = optimizer.snapshot()
        if state.step in self.steps:
            generator = torch.Generator(device=state.mean.device).manual_seed(self.seed)
            gp = optimizer.gaussian_process(
                self.data, beta=self.beta, num_samples=self.num_samples, generator=generator
            )
            self.records.append(Record(state.step, state, gp))
