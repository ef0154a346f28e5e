"""How the time of the full kernel and of the GGN diagonal grows with N, K and P."""

from __future__ import annotations

from functools import partial

from benchmarks import networks
from benchmarks.case import Case, Implementation, Settings
from benchmarks.cases.common import VMAP, ggn_case, kernel_case, lenet_problem, vmap_variants
from benchmarks.peers import vmap_jacrev
from benchmarks.problem import Problem

_EXAMPLES = (50, 100, 200, 400, 1000)
_OUTPUTS = (1, 2, 5, 10, 20, 50)
_WIDTHS = (32, 64, 128, 256, 512)
_FIXED = 100


def growth(settings: Settings) -> list[Case]:
    """N and K on LeNet-5, P on an MLP of two hidden layers."""
    result = []
    for nominal in _EXAMPLES:
        problem = lenet_problem(settings, nominal)
        result += _pair("N", nominal, problem, f"LeNet-5, N = {problem.num_examples}", problem.num_examples)
    for outputs in _OUTPUTS:
        problem = lenet_problem(settings, _FIXED, num_outputs=outputs)
        result += _pair("K", outputs, problem, f"LeNet-5, K = {outputs}, N = {problem.num_examples}", outputs)
    for width in _WIDTHS[:2] if settings.quick else _WIDTHS:
        problem = Problem(partial(networks.mlp, width), (784,), settings.size(_FIXED), settings.engine)
        weights = 785 * width + (width + 1) * (width + 10)
        result += _pair("P", width, problem, f"MLP, P = {weights:,}, N = {problem.num_examples}", weights)
    return result


def _pair(axis: str, nominal: int, problem: Problem, words: str, x: float) -> list[Case]:
    """The full kernel and, where there are classes, the GGN diagonal at one point of an axis."""
    kernel = kernel_case(
        f"growth/full-kernel-{axis}-{nominal}", f"full kernel, {words}", problem, "full", axis=axis, x=x
    )
    if problem.num_outputs < 2:
        return [kernel]
    rows = Implementation(VMAP, vmap_variants(problem, vmap_jacrev.ggn_diagonal))
    diagonal = ggn_case(
        f"growth/ggn-diagonal-{axis}-{nominal}", f"GGN diagonal, {words}", problem, rows, axis=axis, x=x
    )
    return [kernel, diagonal]
