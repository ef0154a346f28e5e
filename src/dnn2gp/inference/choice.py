"""Choosing the inference: the one that the user passes, or the exact one with the smallest matrix."""

from __future__ import annotations

from dnn2gp.inference.base import Cost, Inference
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.inference.weight_space import WeightSpace
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
