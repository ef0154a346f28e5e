"""Jacobian products: the only place that differentiates the network, and where speed is decided."""

from dnn2gp.features.base import FeatureMap, NetworkFeatures, Whitener
from dnn2gp.features.functional import JacobianFeatures
from dnn2gp.features.gradient import GradientFeatures
from dnn2gp.features.sites import SiteFeatures

__all__ = ["FeatureMap", "GradientFeatures", "JacobianFeatures", "NetworkFeatures", "SiteFeatures", "Whitener"]
