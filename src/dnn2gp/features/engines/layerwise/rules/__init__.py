"""One rule per kind of layer. Importing this package registers them. Start with `base.py`."""

from dnn2gp.features.engines.layerwise.rules import (
    attention,
    convolution,
    elementwise,
    embedding,
    linear,
    normalisation,
    recurrent,
)
from dnn2gp.features.engines.layerwise.rules.base import Rule, Rules, Use, argument, body, rule

__all__ = ["Rule", "Rules", "Use", "argument", "body", "rule"]

_BUILT_IN = (attention, convolution, elementwise, embedding, linear, normalisation, recurrent)
