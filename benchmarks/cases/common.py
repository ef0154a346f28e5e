"""Problems and implementations that several groups share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks import networks, ours
from benchmarks.case import OURS, Case, Implementation, Prepare, Run, Settings, single
from benchmarks.peers import vmap_jacrev
from benchmarks.problem import Problem

VMAP, LOOP, BACKPACK = "vmap-jacrev", "per-example loop", "BackPACK"
RELEASED = "released code's loop"
# The released code's batch, and how many of its examples are measured.
RELEASED_BATCH, RELEASED_PART = 128, 4
_CHUNKS = (16, 128)
# Rows of a full kernel from which on only one size of chunks is tried.
_LONG = 4000
_BATCHES = (64, 128, 256)


def lenet_problem(
    settings: Settings, num_examples: int, dtype: torch.dtype = torch.float32, num_outputs: int = 10
) -> Problem:
    """LeNet-5 on MNIST-sized inputs."""
    build = partial(networks.lenet5, num_outputs)
    return Problem(build, (1, 28, 28), settings.size(num_examples), settings.engine, dtype, num_outputs)


def dtype_name(dtype: torch.dtype) -> str:
    """float32 or float64."""
    return str(dtype).removeprefix("torch.")


def vmap_variants(
    problem: Problem, compute: Callable[..., Tensor], chunks: tuple[int, ...] = _CHUNKS
) -> dict[str, Prepare]:
    """The quantity by vmap-jacrev with chunks of several sizes."""

    def prepare(chunk: int) -> Run:
        module, inputs = problem.module, problem.inputs
        return lambda: compute(module, inputs, chunk=chunk)

    return {f"chunks of {chunk}": partial(prepare, chunk) for chunk in chunks}


def kernel_case(name: str, title: str, problem: Problem, kind: str, *others: Implementation, **place: object) -> Case:
    """The "full" or "trace" kernel: ours, vmap-jacrev, and others."""
    mine, theirs = {
        "full": (ours.full_kernel, vmap_jacrev.full_kernel),
        "trace": (ours.trace_kernel, vmap_jacrev.trace_kernel),
    }[kind]
    long = kind == "full" and problem.num_examples * problem.num_outputs > _LONG  # nearly all of it is the product
    implementations = (
        ours.implementation(problem, partial(mine, problem)),
        Implementation(VMAP, vmap_variants(problem, theirs, _CHUNKS[:1] if long else _CHUNKS)),
        *others,
    )
    return Case(name, title, problem.tolerance, implementations, **place)  # type: ignore[arg-type]


def backpack_ggn(problem: Problem) -> Implementation:
    """BackPACK's exact GGN diagonal, at its best batch size."""

    def prepare(batch: int) -> Run:
        from benchmarks.peers import backpack

        return backpack.ggn_diagonal(problem.module, problem.inputs, problem.labels, batch)

    return Implementation(BACKPACK, {f"batch {batch}": partial(prepare, batch) for batch in _BATCHES})


def released(problem: Problem, compute: Callable[..., Tensor], expected: Callable[[Tensor], Tensor]) -> Implementation:
    """The released code's loop on a few examples of a batch; linear in N."""
    return single(
        RELEASED,
        lambda: compute(problem.module, problem.inputs[:RELEASED_BATCH], RELEASED_PART),
        expected=expected,
        scale=problem.num_examples / RELEASED_PART,
        note=f"measured on {RELEASED_PART} examples, each pass through a batch of {RELEASED_BATCH}; linear in N",
    )


def ggn_case(name: str, title: str, problem: Problem, *others: Implementation, **place: object) -> Case:
    """The GGN diagonal: ours, BackPACK, and others."""
    implementations = (
        ours.implementation(problem, partial(ours.ggn_diagonal, problem), OURS),
        backpack_ggn(problem),
        *others,
    )
    return Case(name, title, problem.tolerance, implementations, **place)  # type: ignore[arg-type]
