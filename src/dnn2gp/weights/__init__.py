"""Step (A): a Gaussian over the weights, from the expansion of the loss at an anchor.

May import `features` and the rooms below it. Start with `expansion.py` (Eq. 5), then `gaussian.py` and `laplace.py`
(Laplace-GGN), `online_newton.py` (the training methods) and `structures/` (dense, block diagonal, Kronecker, diagonal).
"""

from dnn2gp.weights.columns import SampledColumns
from dnn2gp.weights.curvature import EmpiricalFisher, ExactHessian, GaussNewton
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.laplace import laplace
from dnn2gp.weights.online_newton import OnlineNewton
from dnn2gp.weights.priors import precision_from_weight_decay
from dnn2gp.weights.structures import (
    BlockDiagonal,
    BlockDiagonalPrecision,
    Dense,
    DensePrecision,
    Diagonal,
    DiagonalPrecision,
    Kronecker,
    KroneckerPrecision,
    Precision,
    Structure,
)

__all__ = [
    "BlockDiagonal",
    "BlockDiagonalPrecision",
    "Dense",
    "DensePrecision",
    "Diagonal",
    "DiagonalPrecision",
    "EmpiricalFisher",
    "ExactHessian",
    "Expansion",
    "GaussNewton",
    "Gaussian",
    "Kronecker",
    "KroneckerPrecision",
    "OnlineNewton",
    "Precision",
    "SampledColumns",
    "Structure",
    "laplace",
    "precision_from_weight_decay",
]
