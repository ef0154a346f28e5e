"""Kernels J Jᵀ: full and traced over outputs, on convolutional networks, a ResNet and a transformer."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks import networks
from benchmarks.case import Case, Implementation, Run, Settings, single
from benchmarks.cases.common import LOOP, RELEASED_PART, dtype_name, kernel_case, lenet_problem, released
from benchmarks.peers import loop
from benchmarks.problem import Problem
from dnn2gp.network import Network

NEURAL_TANGENTS = "neural-tangents"
BOUNDED, BUDGET = "dnn2gp, budget of 500 MB, into a file", 500e6


def trace_kernels(settings: Settings) -> list[Case]:
    """The trace kernel of LeNet-5 in float64, with the released code's loop, and of its CIFAR form."""
    small = lenet_problem(settings, 300, torch.float64)
    images = Problem(partial(networks.lenet5, channels=3, side=32), (3, 32, 32), settings.size(1000), settings.engine)
    slow = single(LOOP, lambda: loop.trace_kernel(small.module, small.inputs))
    return [
        kernel_case(
            "trace-kernel/lenet5-float64",
            f"trace kernel, LeNet-5, N = {small.num_examples}, float64",
            small,
            "trace",
            slow,
            released(small, loop.released_trace_kernel, lambda kernel: kernel[:RELEASED_PART, :RELEASED_PART]),
            _neural_tangents(small, trace=True),
        ),
        kernel_case(
            "trace-kernel/cifar",
            f"trace kernel, LeNet-5 for CIFAR, N = {images.num_examples}, float32",
            images,
            "trace",
        ),
    ]


def full_kernels(settings: Settings) -> list[Case]:
    """The full kernel NK × NK of LeNet-5."""
    problems = {nominal: lenet_problem(settings, nominal) for nominal in (300, 1000)}
    return [
        kernel_case(
            f"full-kernel/lenet5-{nominal}",
            f"full kernel, LeNet-5, N = {problem.num_examples}, K = 10, float32",
            problem,
            "full",
            *([_bounded(problem)] if nominal == 1000 else []),
        )
        for nominal, problem in problems.items()
    ]


def architectures(settings: Settings) -> list[Case]:
    """The full kernel of a small ResNet and of a two-layer transformer."""
    size = settings.size(100)
    resnet = Problem(networks.small_resnet, (3, 32, 32), size, settings.engine)
    encoder = Problem(networks.transformer, (32, 16), size, settings.engine)
    return [
        kernel_case("architectures/resnet", f"full kernel, small ResNet, N = {size}, float32", resnet, "full"),
        kernel_case(
            "architectures/transformer", f"full kernel, 2-layer transformer, N = {size}, float32", encoder, "full"
        ),
    ]


def neural_tangents(settings: Settings) -> list[Case]:
    """The full and trace kernel compared with neural-tangents' structured derivatives, in float32."""
    result = []
    for kind in ("full", "trace"):
        problem = lenet_problem(settings, 300)
        title = f"{kind} kernel, LeNet-5, N = {problem.num_examples}, {dtype_name(problem.dtype)}"
        result.append(
            kernel_case(
                f"neural-tangents/{kind}", title, problem, kind, _neural_tangents(problem, trace=kind == "trace")
            )
        )
    return result


def _bounded(problem: Problem) -> Implementation:
    """Ours within a memory budget, with the result in a file."""

    def prepare() -> Run:
        features = problem.engine_class(Network(problem.module, problem.inputs), problem.inputs, memory_budget=BUDGET)
        folder = tempfile.TemporaryDirectory()  # lives as long as the run that holds it
        return lambda: features.kernel_full(problem.inputs, problem.prior, out=Path(folder.name) / "kernel")

    return Implementation(BOUNDED, {"": prepare})


def _neural_tangents(problem: Problem, trace: bool) -> Implementation:
    """The same weights in JAX, compiled untimed. Its trace kernel is a mean over outputs."""

    def prepare() -> Run:
        from benchmarks.peers import neural_tangents as peer

        return peer.lenet5_kernel(problem.module, problem.inputs, trace)  # type: ignore[arg-type]

    def expected(kernel: torch.Tensor) -> torch.Tensor:
        return kernel / problem.num_outputs if trace else kernel.permute(0, 2, 1, 3)

    return Implementation(
        NEURAL_TANGENTS,
        {"": prepare},
        expected,
        note="structured derivatives, jitted; compilation is not counted",
    )
