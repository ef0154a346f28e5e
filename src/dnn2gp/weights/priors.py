"""The prior N(w | 0, diag(δ)⁻¹), where δ is one number, one per layer, or one per weight."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.network.inputs import check_dense
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import as_float, positive_number, whole_number

PriorPrecision: TypeAlias = "float | int | Tensor | Mapping[str, float] | Mapping[str, int]"


def expand_precision(prior_precision: PriorPrecision, layout: Layout, like: Tensor) -> Float[Tensor, " P"]:
    """δ for each weight, from a number, a mapping layer → δ, or a tensor with one entry per layer or per weight."""
    layers = layout.layers
    if isinstance(prior_precision, Mapping):
        prior_precision = _from_mapping(prior_precision, list(layers))
    value = _real(prior_precision, "a number, a mapping from layer to number, or a tensor of real numbers").to(like)
    bad = ~(value.isfinite() & (value > 0))
    if bad.any():
        raise InputError(
            f"prior_precision: expected δ > 0 and finite in {like.dtype}; got {value[bad][0].item():g} "
            f"({int(bad.sum())} of {value.numel()} entries are invalid). For weight decay λ on a mean loss, δ = N λ: "
            "see precision_from_weight_decay."
        )
    if value.ndim == 0:
        return value.expand(layout.num_weights).clone()
    if value.shape == (layout.num_weights,):
        return value.clone()
    if value.shape == (len(layers),):
        return layout.expand(value)
    raise InputError(
        f"prior_precision: expected a scalar, {len(layers)} entries (one per layer: {list(layers)}) or "
        f"{layout.num_weights} entries (one per weight); got shape {tuple(value.shape)}."
    )


def _from_mapping(prior_precision: Mapping[str, object], layers: list[str]) -> Float[Tensor, " L"]:
    if set(prior_precision) != set(layers):
        raise InputError(
            f"prior_precision: expected one entry for each of the layers {layers}; got {list(prior_precision)}. "
            "The layers are the names in network.named_modules() that own trainable weights."
        )
    return torch.stack([_real(prior_precision[name], f"a number for the layer {name!r}").double() for name in layers])


def _real(value: object, expected: str) -> Tensor:
    """A number or tensor as a tensor; bool and complex values are rejected."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return torch.tensor(as_float(value), dtype=torch.float64)
    if isinstance(value, Tensor) and not value.is_complex() and value.dtype != torch.bool:
        check_dense(value, "prior_precision")
        return value.detach()
    kind = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else repr(value)
    raise InputError(f"prior_precision: expected {expected}; got {kind}. Use e.g. prior_precision=1.0.")


def precision_from_weight_decay(
    weight_decay: float, num_examples: int, *, num_outputs: int = 1, sigma: float | None = None
) -> float:
    """δ of the summed loss Σᵢ ℓᵢ(w) + ½ δ wᵀw, for a network trained on a *mean* loss with weight decay λ.

        δ = N λ              nn.CrossEntropyLoss, nn.BCEWithLogitsLoss and nn.PoissonNLLLoss with one output
        δ = N K λ            `num_outputs` = K, for losses that average over K outputs as well
        δ = N K λ / (2σ²)    `sigma` = σ too, for nn.MSELoss, whose (y−f)² is 2σ² times that of GaussianLikelihood(σ)

    (Optimisers with *decoupled* decay, such as AdamW, do not minimise such a loss; δ is then an approximation.)
    """
    try:
        weight_decay = positive_number("weight_decay", weight_decay)
        num_examples = whole_number("num_examples", num_examples)
        num_outputs = whole_number("num_outputs", num_outputs)
        sigma = None if sigma is None else positive_number("sigma", sigma)
    except InputError as error:
        raise InputError(
            f"{error} Without weight decay, there is no δ to convert: leave out prior_precision, and convert chooses δ "
            "by the evidence."
        ) from None
    precision = weight_decay * num_examples * num_outputs
    return precision if sigma is None else precision / (2 * sigma**2)
