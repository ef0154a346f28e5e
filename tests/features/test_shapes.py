"""Rules over random shapes: positions of linear layers, the geometry of convolutions and of their transposes."""

from __future__ import annotations

import pytest
import torch
from features.support import Case, close, constant, engine, explicit, kernel, randn
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

sizes = st.integers(1, 3)
few = settings(derandomize=True, max_examples=25, deadline=None)


def assert_jacobian_and_kernel(case: Case, examples: int, outputs: int) -> None:
    module, inputs = case.network(examples, outputs)
    J = explicit(module, inputs)
    assume(J.any())  # a kernel that meets nothing but padding
    features = engine(module, inputs)
    assert features.rest is None
    close(features.jacobian(inputs), J)
    close(features.kernel_full(inputs, constant(features)), kernel(J, constant(features)))
    close(features.ggn_diagonal(inputs, torch.ones(*J.shape[:2], 1).double()), J.sum(1).square().sum(0))


@pytest.mark.slow
@few
@given(st.lists(sizes, max_size=3), sizes, sizes, st.booleans(), st.integers(1, 4), sizes)
def test_linear_at_positions(positions, width, out, bias, examples, outputs):
    """Any number of axes between the examples and the features."""
    case = Case(lambda: nn.Linear(width, out, bias), lambda n: randn(n, *positions, width))
    assert_jacobian_and_kernel(case, examples, outputs)


@st.composite
def geometries(draw):
    """(groups, channels, kernel, stride, padding, dilation, image)."""
    pair = st.tuples(sizes, sizes)
    groups = draw(sizes)
    channels = (groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2)))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    image = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    return (
        groups,
        channels,
        draw(pair),
        draw(pair),
        padding,
        draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        image,
    )


@pytest.mark.slow
@few
@given(geometries(), st.booleans(), st.integers(1, 3))
def test_convolution(geometry, bias, examples):
    groups, (C, O), kernel_size, stride, padding, dilation, image = geometry
    assume(all(s + 2 * p > d * (k - 1) for s, p, d, k in zip(image, padding, dilation, kernel_size, strict=True)))
    case = Case(
        lambda: nn.Conv2d(C, O, kernel_size, stride, padding, dilation, groups, bias), lambda n: randn(n, C, *image)
    )
    assert_jacobian_and_kernel(case, examples, 2)


@pytest.mark.slow
@few
@given(geometries(), st.booleans(), st.integers(1, 3), st.tuples(st.integers(0, 2), st.integers(0, 2)))
def test_transposed_convolution(geometry, bias, examples, more):
    groups, (C, O), kernel_size, stride, padding, dilation, image = geometry
    more = tuple(min(m, max(s, d) - 1) for m, s, d in zip(more, stride, dilation, strict=True))
    axes = zip(image, stride, padding, dilation, kernel_size, more, strict=True)
    assume(all((size - 1) * s - 2 * p + d * (k - 1) + m + 1 > 0 for size, s, p, d, k, m in axes))
    case = Case(
        lambda: nn.ConvTranspose2d(C, O, kernel_size, stride, padding, more, groups, bias, dilation),
        lambda n: randn(n, C, *image),
    )
    assert_jacobian_and_kernel(case, examples, 2)
