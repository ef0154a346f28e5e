"""Novelty: the share of the prior variance at an input that the training data have left."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.likelihoods import CategoricalLikelihood, Likelihood

# Logits that are further than this below the largest one do not change anything, but their probability underflows.
_LOWEST = -600.0


def novelty(
    likelihood: Likelihood,
    mean: Float[Tensor, "N K"],
    covariance: Float[Tensor, "N K K"],
    prior: Float[Tensor, "N K K"],
) -> Float[Tensor, "N *K"]:
    """V_kk / K_kk of each output, with V = J Σ̃ Jᵀ after the data and K = J V₀ Jᵀ before them, in float64.

    It is between 0 and 1, and does not depend on the size of J, which may be smaller for inputs unlike the training
    data. For exclusive classes there is one number for each input, in which the precision Λ of the label at the mean
    weighs the outputs:

        tr(Λ V) / tr(Λ K) ,        Λ = diag(p) − p pᵀ .
    """
    covariance, prior = covariance.double(), prior.double()
    if not isinstance(likelihood, CategoricalLikelihood):
        return _share(covariance.diagonal(dim1=1, dim2=2), prior.diagonal(dim1=1, dim2=2))
    logits = mean.double()
    logits = (logits - logits.amax(1, keepdim=True)).clamp(min=_LOWEST)
    root = likelihood.noise_precision_root(logits)
    root = root / root.abs().amax((1, 2), keepdim=True)
    left, whole = ((root * (each @ root)).sum((1, 2)) for each in (covariance, prior))
    return _share(left, whole)


def _share(left: Tensor, whole: Tensor) -> Tensor:
    """left / whole; 0 where there was nothing to learn, and at most 1, which rounding may exceed."""
    return torch.where(whole > 0, left / torch.where(whole > 0, whole, 1.0), 0.0).clamp(0, 1)
