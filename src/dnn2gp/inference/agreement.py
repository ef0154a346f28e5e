"""Whether function space and weight space agree to rounding: a check of how well a model is conditioned."""

from __future__ import annotations

import torch

from dnn2gp.inference.function_space import FunctionSpace
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.support.randomness import normal


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
