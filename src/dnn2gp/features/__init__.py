"""Jacobian products: the only place that differentiates the network, and where speed is decided."""

from dnn2gp.features.base import FeatureMap
from dnn2gp.features.factored import FactoredJacobian
from dnn2gp.features.factors import Factors
from dnn2gp.features.functional import JacobianFeatures
from dnn2gp.features.gradient import GradientFeatures
from dnn2gp.features.jacobian import NetworkFeatures
from dnn2gp.features.kronecker import KroneckerFactors
from dnn2gp.features.layerwise import LayerwiseFeatures
from dnn2gp.features.operator import FactoredOperator
from dnn2gp.features.plan import Plan
from dnn2gp.features.stacked import AveragedFeatures, StackedFeatures
from dnn2gp.features.whitener import Whitener

__all__ = [
    "AveragedFeatures",
    "FactoredJacobian",
    "FactoredOperator",
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
