"""Which space: both are exact, so the one with the smaller matrix."""

from __future__ import annotations

from dnn2gp.inference.base import Cost, Inference
from dnn2gp.inference.function_space import FunctionSpace
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.inference.weight_space import WeightSpace


def costs(model: LinearModel) -> tuple[Cost, Cost]:
    """What weight space and function space cost for this model."""
    sites, weights = model.expansion.num_sites, model.expansion.features.num_weights
    return WeightSpace.cost(sites, weights), FunctionSpace.cost(sites, weights)


def choose_space(model: LinearModel) -> type[Inference]:
    """Weight space if P ≤ M = N·R, else function space."""
    weight, function = costs(model)
    return WeightSpace if weight.size <= function.size else FunctionSpace
