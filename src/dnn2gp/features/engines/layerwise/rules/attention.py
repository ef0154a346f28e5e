"""Multi-head attention: its projections are linear maps inside one torch function, which is replaced by its body."""

from __future__ import annotations

from types import FunctionType

import torch.nn.functional as F

from dnn2gp.features.engines.layerwise.rules.base import Rules


def opened(function: FunctionType) -> FunctionType:
    """The body of a Python function of torch.nn.functional, without its own dispatch to function modes.

    Function modes then see the calls inside it one by one.
    """
    namespace = {**function.__globals__, "has_torch_function": lambda _: False}
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


Rules.bodies[F.multi_head_attention_forward] = opened(F.multi_head_attention_forward)
