"""Step A: the Laplace-GGN approximation of the weight posterior, Eq. (4) with Eq. (7)."""

from __future__ import annotations

from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.structures import Dense, Structure


def laplace(expansion: Expansion, prior: Gaussian, structure: Structure = Dense()) -> Gaussian:
    """N(w | w*, Σ̃) with Σ̃⁻¹ = Σᵢ Jᵢᵀ Λᵢ Jᵢ + δI, in the given structure.

    The mean is the anchor, as in Eq. (4); it is the mode only where the gradient of the loss vanishes.
    """
    precision = Structure.checked("structure", structure).posterior_precision(
        prior.precision, expansion.features, expansion.inputs, expansion.root
    )
    return Gaussian(expansion.anchor, precision)
