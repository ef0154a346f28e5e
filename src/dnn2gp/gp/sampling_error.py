"""gp.sampling_error: how far predictive variances are from those with all columns of the curvature.

A second, independent draw of the columns gives another posterior, and both draws together a third one. Let t, t' and u
be the traces of the covariance of f at an input. Then t − t' has twice the variance of t. A covariance is a convex
function of its precision, so that t is too large on average, in proportion to the variance of the drawn curvature,
which is half as large with both draws: t + t' − 2u estimates this bias. The relative error is therefore

    √( mean over inputs of ½ ((t − t') / u)² + ((t + t' − 2u) / u)² ) .
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference import Posterior, new_latent
from dnn2gp.likelihoods import Likelihood
from dnn2gp.support.memory import holding
from dnn2gp.weights.expansion import Expansion

# Training examples at which the posteriors are compared, evenly spread over the data.
_EXAMPLES = 32
# What is added to the seed for the second draw.
_OTHER = 2**31


def sampling_error(posterior: Posterior, likelihood: Likelihood) -> float:
    """The relative error of a predictive variance tr J Σ̃ Jᵀ, root mean square; zero if all columns are there."""
    expansion = posterior.model.expansion
    columns = expansion.columns
    if columns is None or expansion.root.shape[2] == expansion.root.shape[1] - 1:
        return 0.0
    few = expansion.subset(expansion.spread(_EXAMPLES))
    other = expansion.redrawn(likelihood, replace(columns, seed=(columns.seed + _OTHER) % 2**32))
    both = replace(expansion, root=torch.cat([expansion.root, other.root], 2) / 2**0.5)
    with holding(posterior.bytes):
        first, second, together = (
            _traces(posterior if sites is expansion else _inferred(posterior, sites), few)
            for sites in (expansion, other, both)
        )
    spread, bias = (first - second) / together, (first + second - 2 * together) / together
    return (0.5 * spread.square() + bias.square()).mean().sqrt().item()


def _inferred(posterior: Posterior, sites: Expansion) -> Posterior:
    return posterior.method.infer(replace(posterior.model, expansion=sites))


def _traces(posterior: Posterior, few: Expansion) -> Float[Tensor, " n"]:
    """tr J Σ̃ Jᵀ; of the most probable classes, if there are many."""
    found = new_latent(posterior, few.features, few.inputs).covariance.double()
    return few.team.gathered(found.diagonal(dim1=1, dim2=2).sum(1))
