"""Steps of VOGN and OGN compared with steps of Adam, and with VOGN on per-example gradients by vmap."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks import networks
from benchmarks.case import OURS, Case, Implementation, Run, Settings
from benchmarks.cases.mnist import mnist_problem
from benchmarks.peers.vmap_vogn import VmapVOGN
from benchmarks.problem import Problem
from dnn2gp import OGN, VOGN, CategoricalLikelihood

ADAM, VMAP = "Adam", "per-example gradients by vmap"
_BATCH, _STEPS, _DATA = 128, 20, 60_000


def optimizers(settings: Settings) -> list[Case]:
    """Twenty steps, batches of 128: LeNet-5 on MNIST, and a small ResNet."""
    batch = 16 if settings.quick else _BATCH
    found = [
        _case(f"optimizers/{name}-lenet5", f"{name.upper()} on LeNet-5, MNIST", partial(_mnist, settings), name, batch)
        for name in ("vogn", "ogn")
    ]
    resnet = _case("optimizers/vogn-resnet", "VOGN on a small ResNet", partial(_resnet, settings), "vogn", batch)
    return [*found, resnet]


def _case(name: str, title: str, problem: object, method: str, batch: int) -> Case:
    ways = {
        OURS: partial(_ours, problem, method, batch),
        ADAM: partial(_adam, problem, batch),
        VMAP: partial(_vmap, problem, method, batch),
    }
    implementations = tuple(
        Implementation(way, {"": prepare}, *((None,) if way == ADAM else ())) for way, prepare in ways.items()
    )
    return Case(name, f"{_STEPS} steps of {title}, batches of {batch}, float32", 1e-4, implementations)


def _mnist(settings: Settings) -> Problem:
    return mnist_problem(settings)


def _resnet(settings: Settings) -> Problem:
    return Problem(networks.small_resnet, (3, 32, 32), 512, settings.engine)


def _batches(problem: Problem, size: int) -> list[tuple[Tensor, Tensor]]:
    inputs, labels = problem.inputs[: _STEPS * size], problem.labels[: _STEPS * size]
    found = list(zip(inputs.split(size), labels.split(size), strict=True))
    return (found * _STEPS)[:_STEPS]


def _ours(make: object, method: str, size: int) -> Run:
    problem: Problem = make()  # type: ignore[operator]
    batches, module = _batches(problem, size), deepcopy(problem.module)
    kind = VOGN if method == "vogn" else OGN
    optimizer = kind(module, CategoricalLikelihood(), _DATA, lr=1e-3, precision_lr=1e-3, momentum=0.9)
    optimizer.backward(*batches[0])  # what is learned once of a network
    optimizer.zero_grad()

    def run() -> Tensor:
        for inputs, labels in batches:
            optimizer.step(inputs, labels)
        return optimizer.posterior().precision.diagonal()

    return run


def _adam(make: object, size: int) -> Run:
    problem: Problem = make()  # type: ignore[operator]
    batches, module = _batches(problem, size), deepcopy(problem.module)
    optimizer = torch.optim.Adam(module.parameters())

    def run() -> None:
        for inputs, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), labels).backward()
            optimizer.step()

    return run


def _vmap(make: object, method: str, size: int) -> Run:
    problem: Problem = make()  # type: ignore[operator]
    batches = _batches(problem, size)
    optimizer = VmapVOGN(deepcopy(problem.module), _DATA, 1e-3, 1e-3, 0.9, sampled=method == "vogn")

    def run() -> Tensor:
        for inputs, labels in batches:
            optimizer.step(inputs, labels)
        return optimizer.precision

    return run
