"""The layerwise engine and its rules. Start with `engine.py`, then read `learning.py` and `rules/base.py`."""

from dnn2gp.features.engines.layerwise.capture import UseRecorder
from dnn2gp.features.engines.layerwise.engine import LayerwiseFeatures
from dnn2gp.features.engines.layerwise.rules import Rules, Use, body, rule

__all__ = ["LayerwiseFeatures", "Rules", "Use", "UseRecorder", "body", "rule"]
