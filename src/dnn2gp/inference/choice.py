"""Choosing the inference: the one that the user passes, or the exact one with the smallest matrix."""

from __future__ import annotations

import torch

from dnn2gp.inference.base import Cost, Inference
from dnn2gp.inference.function_space import FunctionSpace
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.inference.weight_space import WeightSpace
from dnn2gp.support.randomness import normal
from dnn2gp.weights.structures import Dense, Structure


def choose(model: LinearModel, inference: Inference | None = None, structure: Structure | None = None) -> Inference:
    """The inference for a model.

    Without arguments, it is the cheapest exact one; all exact ones agree. A structure other than `Dense()` approximates
    the precision of the weights, which only weight space computes.
    """
    if inference is not None:
        return inference if structure is None else inference.with_structure(structure)
    if structure not in (None, Dense()):
        return WeightSpace(structure)
    return min((kind for kind in _registered() if kind.automatic), key=lambda kind: _cost(kind, model).size)


def costs(model: LinearModel) -> tuple[Cost, ...]:
    """The cost of every registered inference with its default options, the one with the smallest matrix first."""
    return tuple(sorted((_cost(kind, model) for kind in _registered()), key=lambda cost: cost.size))


def _registered() -> list[Inference]:
    """Every inference with its default options; weight space comes before function space and wins ties."""
    return [kind() for _, kind in sorted(Inference.kinds.items(), reverse=True)]


def _cost(inference: Inference, model: LinearModel) -> Cost:
    return inference.cost(model.expansion.num_sites, model.expansion.features.num_weights)


def spaces_gap(model: LinearModel, generator: torch.Generator) -> float:
    """‖z' − z‖ / ‖z‖ in the norm √(zᵀΣ̃z), that of posterior standard deviations, for a random z.

    z' = Σ̃⁻¹ Σ̃ z, with Σ̃ z by function space and Σ̃⁻¹ = V⁻¹ + JᵀΛJ by the products of weight space.
    """
    expansion, posterior = model.expansion, FunctionSpace().infer(model)
    probe = normal((expansion.features.num_weights, 1), generator, expansion.anchor)
    solved = posterior.covariance_matmul(probe)
    pushed = expansion.features.jvp(expansion.inputs, solved)
    curved = expansion.features.vjp(expansion.inputs, expansion.noise_precision() @ pushed).double()
    gap = model.prior.precision.matmul(solved) + curved - probe
    size = (gap * posterior.covariance_matmul(gap)).sum().clamp(min=0)
    return (size / (probe * solved).sum()).sqrt().item()
