"""The whole MNIST training set: curvature of LeNet-5 compared with one epoch of training with Adam."""

from __future__ import annotations

import os
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import networks, ours
from benchmarks.case import OURS, Case, Implementation, Run, Settings
from benchmarks.problem import Problem

EPOCH = "one epoch of Adam"
_BATCH = 128
_IMAGES, _QUICK_IMAGES = 60_000, 512


def mnist_problem(settings: Settings) -> Problem:
    """LeNet-5 on the training images (a few in a smoke run), or on random ones where they are not on this machine."""
    count = _QUICK_IMAGES if settings.quick else _IMAGES
    load = partial(_load, count) if data_file().exists() else None
    return Problem(networks.lenet5, (1, 28, 28), count, settings.engine, load=load)


def data_file() -> Path:
    """mnist.npz in $DNN2GP_DATA, else in ~/.cache/dnn2gp."""
    return Path(os.environ.get("DNN2GP_DATA", "~/.cache/dnn2gp")).expanduser() / "mnist.npz"


def full_training_set(settings: Settings) -> list[Case]:
    """The GGN diagonal and the Kronecker factors, each interleaved with an epoch."""
    count = _QUICK_IMAGES if settings.quick else _IMAGES
    data = f"{count:,} {'MNIST' if data_file().exists() else 'random'} images, LeNet-5, float32"
    epoch = Implementation(EPOCH, {"": partial(_prepare_epoch, settings)}, None, note=f"batches of {_BATCH}")
    return [
        Case(
            f"mnist/{name}",
            f"{name.replace('-', ' ')}, {data}",
            0.0,
            (Implementation(OURS, {"": partial(_prepare_ours, settings, compute)}), epoch),
        )
        for name, compute in (("ggn-diagonal", ours.ggn_diagonal), ("kronecker-factors", ours.kronecker))
    ]


def _load(count: int) -> tuple[Tensor, Tensor]:
    with np.load(data_file()) as data:
        images, labels = data["x_train"][:count], data["y_train"][:count]
    return torch.from_numpy(images).float().unsqueeze(1) / 255, torch.from_numpy(labels).long()


def _prepare_ours(settings: Settings, compute: partial[object]) -> Run:
    problem = mnist_problem(settings)
    problem.warm()
    return partial(compute, problem)


def _prepare_epoch(settings: Settings) -> Run:
    problem = mnist_problem(settings)
    return partial(_epoch, deepcopy(problem.module).train(), problem.inputs, problem.labels)


def _epoch(module: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Train once over the data, shuffled."""
    optimizer = torch.optim.Adam(module.parameters())
    for batch in torch.randperm(len(inputs)).split(_BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs[batch]), labels[batch]).backward()
        optimizer.step()
