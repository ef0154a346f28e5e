"""A rule of the user's own, for a function of their own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from features import support
from features.support import assert_right, close, engine, explicit, falls_back, left, randn
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from dnn2gp.features.blocks import Rows
from dnn2gp.features.engines.layerwise import Rules, Use, body, rule
from dnn2gp.support.errors import FallbackWarning


def sine_scale(x: Tensor, w: Tensor) -> Tensor:
    """sin(w ∘ x), which function modes see as one call."""
    if has_torch_function((x, w)):
        return handle_torch_function(sine_scale, (x, w), x, w)
    return torch.sin(torch.einsum("...d,d->...d", x, w))


@dataclass(frozen=True, eq=False)
class SineUse(Use):
    """∂f/∂w = Σ_l g_l ∘ x_l cos(w ∘ x_l)."""

    x: Tensor
    slope: Tensor

    @property
    def batch_shape(self):
        return tuple(self.x.shape[:-1])

    @property
    def kept(self):
        return self.x

    def block(self, gradients, examples, num_examples):
        axes = self.x.ndim - 1
        G = examples.moved(gradients, num_examples, 1, axes)
        X = examples.moved(self.slope.detach(), num_examples, 0, axes)
        return Rows(torch.einsum("rnld,nld->nrd", G, X), self.parts)


class Sine(nn.Module):
    """A ruled layer, then the function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.w = nn.Linear(3, 2), nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        return sine_scale(torch.tanh(self.layer(x)), self.w).flatten(1)


@pytest.fixture(autouse=True)
def registry():
    """The rules are as before."""
    rules, bodies = dict(Rules.rules), dict(Rules.bodies)
    yield
    for known, before in ((Rules.rules, rules), (Rules.bodies, bodies)):
        known.clear()
        known.update(before)


def sine_use(weights, args, x, w, factor=1.0):
    place = weights.find(w)
    return None if place is None else SineUse((place,), tuple(x.shape), x, factor * x * torch.cos(w * x))


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_a_rule_is_used(shape):
    """Without it the general engine takes the weight, with it none."""
    module, x = Sine().double(), randn(4, *shape)
    with falls_back():
        assert left(engine(module, x)) == {"w"}
    calls = []

    @rule(sine_scale)
    def sine(weights, args, kwargs, output):
        calls.append(args)
        return sine_use(weights, args, *args)

    assert_right(module, x)
    assert calls


def test_a_body_is_used():
    """Another way to compute the function, by calls that have rules: w ∘ x, then sin."""
    module, x = Sine().double(), randn(4, 3)
    body(sine_scale)(lambda x, w: torch.sin(x * w))
    assert_right(module, x)


@pytest.mark.parametrize("factor", [2.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_rule_is_not_used(factor):
    """It is found out on the first examples."""
    module, x = Sine().double(), randn(4, 3)
    rule(sine_scale)(lambda weights, args, kwargs, output: sine_use(weights, args, *args, factor=factor))
    with pytest.warns(FallbackWarning, match="w .*disagrees") as seen:
        features = engine(module, x)
    own = [warning for warning in seen if issubclass(warning.category, FallbackWarning)]
    assert own[0].filename == support.__file__  # where the call is, not where the warning is made
    assert left(features) == {"w"}
    close(features.jacobian(x), explicit(module, x))


def test_a_rule_that_does_not_know_a_call():
    """None leaves the weights to the general engine."""
    rule(sine_scale)(lambda weights, args, kwargs, output: None)
    assert_right(Sine().double(), randn(4, 3), {"w"})


def test_a_rule_that_fails():
    """Its error is not hidden."""

    def broken(weights, args, kwargs, output):
        raise LookupError("in the rule")

    rule(sine_scale)(broken)
    with pytest.raises(LookupError, match="in the rule"):
        engine(Sine().double(), randn(4, 3))
