"""q_t in the state_dict of an optimizer: packed into tensors and numbers, and checked when it is loaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dnn2gp.support.errors import FileFormatError
from dnn2gp.weights.online_newton import State

_SETTINGS = ("num_data", "temperature")
_HELD = {"method", *_SETTINGS, "step", "precision", "momentum", "momentum_weight", "generator"}


def packed(state: State, method: str, num_data: int, temperature: float, generator: torch.Generator) -> dict[str, Any]:
    """q_t except for its mean, which the network's own state_dict holds."""
    return {
        "method": method,
        "num_data": num_data,
        "temperature": temperature,
        "step": state.step,
        "precision": precision_values(state).clone(),
        "momentum": state.momentum.clone(),
        "momentum_weight": state.momentum_weight,
        "generator": generator.get_state(),
    }


def unpacked(own: Any, now: State, method: str, num_data: int, temperature: float) -> State:
    """The inverse of `packed`, with the mean, dtype and device of the present state `now`."""
    if not isinstance(own, dict) or set(own) != _HELD:
        raise FileFormatError(f"load_state_dict: expected the value of {method}.state_dict().")
    expected = precision_values(now)
    if own["method"] != method or own["precision"].shape != expected.shape:
        raise FileFormatError(
            f"load_state_dict: expected the state of {method} with a precision of shape {tuple(expected.shape)}; got "
            f"that of {own['method']} with {tuple(own['precision'].shape)}."
        )
    for name, value in zip(_SETTINGS, (num_data, temperature), strict=True):
        if own[name] != value:
            raise FileFormatError(
                f"load_state_dict: expected the state of a training with {name} = {value}; got one with {own[name]}. "
                "Create the optimizer with the settings of that training."
            )
    return State(
        now.mean,
        type(now.precision)(own["precision"].to(expected, copy=True)),
        own["momentum"].to(now.momentum, copy=True),
        float(own["momentum_weight"]),
        int(own["step"]),
    )


def precision_values(state: State) -> Tensor:
    """The one tensor that defines Σ_t⁻¹: P numbers, or P × P."""
    (values,) = state.precision.state().values()
    return values
