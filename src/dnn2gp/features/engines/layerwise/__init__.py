"""The layerwise engine, and its rules."""

from dnn2gp.features.engines.layerwise.capture import UseRecorder
from dnn2gp.features.engines.layerwise.engine import LayerwiseFeatures
from dnn2gp.features.engines.layerwise.rules import Rules, Use, body, rule

__all__ = ["LayerwiseFeatures", "Rules", "Use", "UseRecorder", "body", "rule"]
