"""A regression whose evidence prefers to interpolate: does the linear model predict as well as it fits?

Where rows occur twice, or targets are whole numbers, the linear model of a large network may fit the training data
almost without noise, and its evidence is largest there, although predictions between the examples are far off.
Leave-one-out tells the two apart.
"""

from __future__ import annotations

from math import inf

from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference import Posterior, left_out
from dnn2gp.support.errors import IllConditionedError, NotPositiveDefiniteError
from dnn2gp.weights.expansion import Expansion

# A noise below this share of the network's own residuals is looked at.
_SHARE = 0.5
_EXAMPLES = 1000


def explains_too_much(expansion: Expansion, noise_scale: float) -> bool:
    """Whether a noise of s σ₀ is far below the residuals of the network, which are in units of σ₀."""
    return noise_scale < _SHARE * (expansion.misfit() / expansion.num_sites) ** 0.5


def left_out_error(posterior: Posterior) -> float:
    """The root mean square of y − E y without the example, in units of the targets; infinite if it is lost to rounding.

    On at most 1,000 examples, evenly spread over the data.
    """
    expansion = posterior.model.expansion
    few = expansion.subset(expansion.spread(_EXAMPLES))
    own = _squares(few, posterior)
    if few.team.largest(float(own is None)) or own is None:
        return inf
    return few.team.gathered(own).mean().sqrt().item()


def _squares(few: Expansion, posterior: Posterior) -> Float[Tensor, "n K"] | None:
    """The squared errors of some examples; None if they are lost to rounding."""
    assert few.targets is not None
    try:
        latent = posterior.latent(few.features, few.inputs)
        shift = left_out(few, latent, posterior).shift
    except (IllConditionedError, NotPositiveDefiniteError):
        return None
    gap = latent.outputs.double() + latent.shift.double() + shift - few.targets.double().reshape(latent.outputs.shape)
    return gap.square()
