"""Jacobians of networks, and every product with them: the only room that differentiates a network.

May import `network` and `support`. `engines/` compute UᵀJ of a few examples as `blocks/` (what a layer's part of J is);
`feature_map.py` and `kernels.py` build all products from these, in chunks that fit the memory budget (`budget/`). Start
with `feature_map.py`, then read `engines/network_features.py` and `engines/layerwise/engine.py`.
"""

from dnn2gp.features.budget.plan import Plan
from dnn2gp.features.engines.gradient import GradientFeatures
from dnn2gp.features.engines.layerwise import LayerwiseFeatures
from dnn2gp.features.engines.network_features import NetworkFeatures
from dnn2gp.features.engines.stacked import AveragedFeatures, StackedFeatures
from dnn2gp.features.engines.torch_func import JacobianFeatures
from dnn2gp.features.factored_jacobian import FactoredJacobian
from dnn2gp.features.factors import Factors
from dnn2gp.features.feature_map import FeatureMap
from dnn2gp.features.kronecker_factors import KroneckerFactors
from dnn2gp.features.whitener import Whitener

__all__ = [
    "AveragedFeatures",
    "FactoredJacobian",
    "Factors",
    "FeatureMap",
    "GradientFeatures",
    "JacobianFeatures",
    "KroneckerFactors",
    "LayerwiseFeatures",
    "NetworkFeatures",
    "Plan",
    "StackedFeatures",
    "Whitener",
]
