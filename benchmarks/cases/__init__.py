"""All cases, by group. A group is a function of the settings; it makes no tensor before a case is run."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.case import Case, Settings
from benchmarks.cases import curvature, growth, inference, kernels, mnist, optimizers, peak, prediction, products

GROUPS: dict[str, Callable[[Settings], list[Case]]] = {
    "trace-kernel": kernels.trace_kernels,
    "full-kernel": kernels.full_kernels,
    "architectures": kernels.architectures,
    "neural-tangents": kernels.neural_tangents,
    "ggn-diagonal": curvature.ggn_diagonals,
    "variance": prediction.variances,
    "exact-gp": inference.exact_gp,
    "kernel-vector": products.kernel_vector,
    "growth": growth.growth,
    "peak": peak.peak,
    "mnist": mnist.full_training_set,
    "optimizers": optimizers.optimizers,
}


def cases(settings: Settings) -> list[Case]:
    """Every case, in the order of the report."""
    return [case for group in GROUPS.values() for case in group(settings)]


def find(name: str, settings: Settings) -> Case:
    """The case of that name."""
    return next(case for case in GROUPS[name.split("/")[0]](settings) if case.name == name)
