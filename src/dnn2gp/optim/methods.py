"""The online-Newton family, one class per row of the table.

    class    evaluated at    curvature            precision
    VON      samples         exact Hessian        dense
    ON       the mean        exact Hessian        dense
    VOGGN    samples         Gauss-Newton         dense
    OGGN     the mean        Gauss-Newton         dense
    VOGN     samples         empirical Fisher     diagonal
    OGN      the mean        empirical Fisher     diagonal

For their arguments see `OnlineNewtonOptimizer`.
"""

from __future__ import annotations

from typing import final

from dnn2gp.optim.optimizer import OnlineNewtonOptimizer
from dnn2gp.weights.curvature import EmpiricalFisher, ExactHessian, GaussNewton
from dnn2gp.weights.structures import Dense, Diagonal


@final
class VON(OnlineNewtonOptimizer):
    """Variational online Newton, Eqs. (11) and (12): the exact Hessian at samples of q_t. For small networks."""

    curvature, structure, at_mean = ExactHessian(), Dense(), False


@final
class ON(OnlineNewtonOptimizer):
    """Online Newton: the exact Hessian at the mean. For small networks."""

    curvature, structure, at_mean = ExactHessian(), Dense(), True


@final
class VOGGN(OnlineNewtonOptimizer):
    """Variational online generalised Gauss-Newton with a dense precision: the method of Theorem 2."""

    curvature, structure, at_mean = GaussNewton(), Dense(), False


@final
class OGGN(OnlineNewtonOptimizer):
    """Online generalised Gauss-Newton at the mean with a dense precision: converges to a minimum of the loss."""

    curvature, structure, at_mean = GaussNewton(), Dense(), True


@final
class VOGN(OnlineNewtonOptimizer):
    """Variational online Gauss-Newton: a diagonal precision from the squared gradients of single examples."""

    curvature, structure, at_mean = EmpiricalFisher(), Diagonal(), False


@final
class OGN(OnlineNewtonOptimizer):
    """VOGN evaluated at the mean: converges to a minimum of the loss and keeps a diagonal Gaussian around it."""

    curvature, structure, at_mean = EmpiricalFisher(), Diagonal(), True
