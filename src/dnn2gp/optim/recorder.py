"""GPs during training: a hook that records the GP of iteration t, on a few examples, at chosen steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.network.data import read_data
from dnn2gp.optim.optimizer import OnlineNewtonOptimizer
from dnn2gp.support.errors import InputError
from dnn2gp.weights.online_newton import State


@dataclass(frozen=True, eq=False)
class Record:
    """q_t and the GP of iteration t."""

    step: int
    state: State
    gp: GaussianProcess


class Recorder:
    """Records the GP after the chosen steps: `optimizer.register_step_post_hook(recorder)`.

    data         a few training examples, which represent all of them; a record costs as much as a GP on these
    steps        the steps after which to record, counted from 1
    beta         of the linear models (see `OnlineNewtonOptimizer.gaussian_process`)
    num_samples  samples of q_t in each record
    seed         of the samples; the same for every record, so that only q_t changes
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
            raise InputError(f"steps: expected step numbers ≥ 1; got {sorted(self.steps)}.")
        self.beta, self.num_samples, self.seed = beta, num_samples, seed
        self.records: list[Record] = []

    def __call__(self, optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The hook itself: record if this step is one of the chosen ones."""
        if not isinstance(optimizer, OnlineNewtonOptimizer):
            raise InputError(f"Recorder: expected an online-Newton optimizer; got {type(optimizer).__name__}.")
        state = optimizer.snapshot()
        if state.step in self.steps:
            generator = torch.Generator(device=state.mean.device).manual_seed(self.seed)
            gp = optimizer.gaussian_process(
                self.data, beta=self.beta, num_samples=self.num_samples, generator=generator
            )
            self.records.append(Record(state.step, state, gp))
