"""Jacobian products: the only place that differentiates the network, and where speed is decided."""

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
