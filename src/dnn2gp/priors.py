"""The prior N(w | 0, diag(δ)⁻¹): δ as one number, one a layer, or one a weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.errors import InputError
from dnn2gp.network import Layout

PriorPrecision: TypeAlias = "float | Tensor | Mapping[str, float]"


def expand_precision(prior_precision: PriorPrecision, layout: Layout, like: Tensor) -> Float[Tensor, " P"]:
    """δ for each weight, from a number, a mapping layer → δ, or a tensor with one entry a layer or a weight."""
    layers = layout.layers
    if isinstance(prior_precision, Mapping):
        if set(prior_precision) != set(layers):
            raise InputError(
                f"prior_precision: expected one entry for each of the layers {list(layers)}; "
                f"got {list(prior_precision)}."
            )
        prior_precision = torch.tensor([float(prior_precision[name]) for name in layers], dtype=torch.float64)
    if isinstance(prior_precision, bool) or not isinstance(prior_precision, int | float | Tensor):
        raise InputError(
            "prior_precision: expected a number, a mapping from layer to number, or a tensor; "
            f"got {type(prior_precision).__name__}."
        )
    value = torch.as_tensor(prior_precision).to(like)
    if not (value.isfinite().all() and (value > 0).all()):
        raise InputError(f"prior_precision: δ must be positive and finite; got {prior_precision!r}.")
    if value.ndim == 0:
        return value.expand(layout.num_weights).clone()
    if value.shape == (layout.num_weights,):
        return value.clone()
    if value.shape == (len(layers),):
        return layout.expand(value)
    raise InputError(
        f"prior_precision: expected a scalar, {len(layers)} entries (one a layer: {list(layers)}) or "
        f"{layout.num_weights} entries (one a weight); got shape {tuple(value.shape)}."
    )


def precision_from_weight_decay(weight_decay: float, num_examples: int) -> float:
    """δ = N λ: the prior precision of a network trained on the *mean* loss with weight decay λ.

    (1/N) Σᵢ ℓᵢ(w) + ½ λ wᵀw  and  Σᵢ ℓᵢ(w) + ½ (N λ) wᵀw  have the same minima. (Optimisers with *decoupled* decay,
    such as AdamW, do not minimise this loss exactly; δ = N λ is then an approximation.)
    """
    if not weight_decay > 0 or num_examples < 1:
        raise InputError(
            f"expected weight_decay > 0 and num_examples ≥ 1; got {weight_decay} and {num_examples}. Without weight decay "
            "the loss has no prior: choose a small δ, or retrain with weight decay."
        )
    return weight_decay * num_examples
