"""Choosing the inference: the one that the user passes, the cheapest exact one, or `Iterative` where none fits."""

from __future__ import annotations

from dnn2gp.inference.base import Inference, Posterior
from dnn2gp.inference.costs import cost_of, registered
from dnn2gp.inference.evidence_parts import Decomposition
from dnn2gp.inference.iterative import Iterative
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.inference.weight_space import WeightSpace
from dnn2gp.support.errors import InputError
from dnn2gp.weights.structures import Dense, Structure

MOST_OPERATIONS = 1e13
"""Exact inference is chosen up to this number of operations: about ten minutes on one core."""
_PER_SECOND = 2e10
# Ranks and samples that are tried, the most accurate first.
_LADDER = ((512, 64), (256, 64), (128, 32), (64, 16), (32, 16))
_STARTS = (128, 64, 32, 16)


def choose(model: LinearModel, inference: Inference | None = None, structure: Structure | None = None) -> Inference:
    """The inference for a model.

    Without arguments, it is the cheapest exact one (all of them agree) if that fits into the memory budget and takes at
    most `MOST_OPERATIONS`, otherwise `Iterative` with a rank that fits. A structure other than `Dense()` approximates
    the precision of the weights, which only weight space computes.
    """
    if inference is not None:
        _check_shared(inference, model)
        return inference if structure is None else inference.with_structure(structure)
    if structure not in (None, Dense()):
        return WeightSpace(structure)
    exact = _exact(model)
    return exact if structure == Dense() or _fits(exact, model) else _iterative(model)


def _check_shared(inference: Inference, model: LinearModel) -> None:
    if model.expansion.team.size > 1 and not inference.shared:
        raise InputError(
            f"inference={inference!r} pairs all examples with one another, but with processes=, no process has all of "
            "them. Use WeightSpace() or Iterative()."
        )


def start_for(method: Inference, model: LinearModel, known: Decomposition | None = None) -> Posterior:
    """A posterior that preconditions a search for the mode: that of the method, if it solves linear systems."""
    if method.solves:
        return method.rough(model, known)
    anchor = model.expansion.anchor
    budget = _budget(model)
    kinds = [Iterative(rank=rank) for rank in _STARTS]
    fits = (kind for kind in kinds if 4 * kind.bytes(len(anchor), anchor.element_size(), 0) <= budget)
    return next(fits, kinds[-1]).rough(model)


def exact_words(model: LinearModel) -> str:
    """What exact inference would have cost: "a 20000 × 20000 matrix, 9.6 GB and about 30 minutes"."""
    cost = cost_of(_exact(model), model)
    return f"{cost.matrix}, {cost.memory} and about {_duration(cost.operations / _PER_SECOND)} on one core"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 1.5 else "a second"


def _exact(model: LinearModel) -> Inference:
    several = model.expansion.team.size > 1
    return min(
        (kind for kind in registered() if kind.automatic and (kind.shared or not several)),
        key=lambda kind: cost_of(kind, model).size,
    )


def _fits(exact: Inference, model: LinearModel) -> bool:
    cost = cost_of(exact, model)
    return cost.bytes <= _budget(model) and cost.operations <= MOST_OPERATIONS


def _iterative(model: LinearModel) -> Inference:
    """The largest rank whose basis and samples take at most half of the memory budget."""
    budget = _budget(model)
    kinds = [Iterative(rank=rank, samples=samples) for rank, samples in _LADDER]
    return next((kind for kind in kinds if 2 * cost_of(kind, model).bytes <= budget), kinds[-1])


def _budget(model: LinearModel) -> float:
    """The smallest memory budget of all processes."""
    return model.expansion.team.smallest(model.expansion.features.budget())
