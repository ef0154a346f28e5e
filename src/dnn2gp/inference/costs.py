"""What every way of inference would cost for a model, and how accurate it is: `gp.costs()`."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dnn2gp.features import NetworkFeatures
from dnn2gp.inference.base import Cost, Inference
from dnn2gp.inference.iterative import Iterative
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.weights.structures import BlockDiagonal, Diagonal, Kronecker

# The error of tr JΣJᵀ in the median and at the 95th percentile, for a CNN of 5,370 weights on 20,000 images of
# Fashion-MNIST at the δ of the largest evidence.
_MEASURED = {BlockDiagonal.name: (4.6, 9.3), Kronecker.name: (24, 47), Diagonal.name: (52, 78)}


def costs(model: LinearModel) -> tuple[Cost, ...]:
    """The cost of every registered inference with its default options, the one with the smallest matrix first.

    They are followed by weight space with each structure that is cheaper and not exact. A subset of the data and a
    low-rank basis without samples are not among them: their errors are too large.
    """
    found = sorted((cost_of(kind, model) for kind in registered()), key=lambda cost: cost.size)
    return (*found, *_structures(model))


def registered() -> list[Inference]:
    """Every inference with its default options; weight space comes before function space and wins ties."""
    return [kind() for _, kind in sorted(Inference.kinds.items(), reverse=True)]


def cost_of(inference: Inference, model: LinearModel) -> Cost:
    """The cost for the sites and the weights of a model."""
    found = inference.cost(model.expansion.num_sites, model.expansion.features.num_weights)
    return replace(found, accuracy=found.accuracy or _accuracy(inference))


def _accuracy(inference: Inference) -> str:
    if isinstance(inference, Iterative):
        return f"an error that is stated with each answer, {inference.tolerance:.0%} by default"
    return "exact" if inference.exact else "approximate"


def _structures(model: LinearModel) -> list[Cost]:
    """Weight space with blocks, Kronecker factors or a diagonal."""
    M, features = float(model.expansion.num_sites), model.expansion.features
    P, blocks = features.num_weights, [sum(part.stop - part.start for part in parts) for parts in features.layers]
    found = [_cost(BlockDiagonal.name, max(blocks), sum(p**2 * (M + p / 3) for p in blocks), sum(p**2 for p in blocks))]
    if isinstance(features, NetworkFeatures):
        sides = _sides(features)
        operations = sum(side**2 * (M + 10 * side) for side in sides)
        found.append(_cost(Kronecker.name, max(sides), operations, sum(side**2 for side in sides)))
    return [*found, _cost(Diagonal.name, 1, 2 * M * P, P)]


def _cost(name: str, size: int, operations: float, numbers: int) -> Cost:
    median, most = _MEASURED[name]
    words = f"variances off by {median:g} % (median) and {most:g} % (95th percentile) where measured, on a small CNN"
    return Cost(name, size, operations, 3 * 8 * numbers, words)


def _sides(features: NetworkFeatures) -> list[int]:
    """The sides of A and G of each layer with a matrix; of each tensor of weights without one, its size."""
    layout, found = features.network.layout, []
    for members in layout.layers.values():
        shapes = [layout.shapes[member] for member in members]
        for shape in (shape for shape in shapes if len(shape) > 1):
            found += [prod(shape[1:]) + (len(shapes) > 1), shape[0]]
        if all(len(shape) < 2 for shape in shapes):
            found.append(sum(shape.numel() for shape in shapes))
    return found
