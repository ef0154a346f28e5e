"""The layerwise engine, and its rules."""

from dnn2gp.features.layerwise.capture import Recorder
from dnn2gp.features.layerwise.engine import LayerwiseFeatures
from dnn2gp.features.layerwise.rules import Rules, Use, body, rule

__all__ = ["LayerwiseFeatures", "Recorder", "Rules", "Use", "body", "rule"]
