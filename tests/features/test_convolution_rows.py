"""The rows of a convolution's weights by every way, compared with plain backward passes in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dnn2gp.features import LayerwiseFeatures
from dnn2gp.features.engines.layerwise.rules import convolution_rows
from dnn2gp.features.engines.layerwise.rules.convolution_rows import RowSizes, RowWay
from dnn2gp.features.engines.layerwise.rules.geometry import Geometry
from dnn2gp.network import Network
from dnn2gp.weights.structures import DiagonalPrecision

from reference import brute_force

# Shape of an input, output channels, kernel, stride, padding (before, after), dilation.
GEOMETRIES = {
    "1d": ((3, 20), 4, (5,), (2,), ((1, 1),), (1,)),
    "2d": ((2, 9, 8), 5, (3, 2), (1, 2), ((1, 1), (0, 0)), (2, 1)),
    "2d, uneven padding": ((2, 7, 7), 3, (2, 2), (1, 1), ((0, 1), (0, 1)), (1, 1)),
    "2d, a rest": ((1, 10, 10), 2, (3, 3), (4, 4), ((0, 0), (0, 0)), (1, 1)),
    "3d": ((2, 5, 6, 4), 3, (2, 3, 1), (1, 1, 2), ((0, 0), (1, 1), (0, 0)), (1, 1, 1)),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_rows_are_those_of_a_backward_pass_per_example(name, grouped, bias, monkeypatch):
    shape, channels, kernel, stride, padding, dilation = GEOMETRIES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, *shape, dtype=torch.float64, generator=generator)
    weight = torch.randn(channels, shape[0], *kernel, dtype=torch.float64, generator=generator).requires_grad_(True)
    added = torch.zeros(channels, dtype=torch.float64, requires_grad=True)
    padded = F.pad(x, [size for pair in reversed(padding) for size in pair])
    convolution = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(kernel)]
    z = convolution(padded, weight, added, stride, 0, dilation)
    G = torch.randn(5, 2, *z.shape[1:], dtype=torch.float64, generator=generator)
    expected = torch.empty(5, 2, channels, weight[0].numel() + bias, dtype=torch.float64)
    for n in range(5):
        for r in range(2):
            own, of_bias = torch.autograd.grad((z[n] * G[n, r]).sum(), (weight, added), retain_graph=True)
            expected[n, r] = torch.cat([own.flatten(1), of_bias.unsqueeze(1)], 1)[:, : expected.shape[3]]
    geometry = Geometry(kernel, stride, padding, dilation, 1)
    for at_once in (1, convolution_rows._AT_ONCE):  # in several parts, and in one
        monkeypatch.setattr(convolution_rows, "_AT_ONCE", at_once)
        torch.testing.assert_close(RowWay(grouped, 1).rows(geometry, x, G, bias=bias), expected)


class Small(nn.Module):
    """Two convolutions, the first with many positions, the second with a bias, and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.second, self.out = nn.Conv2d(6, 5, 3, stride=2), nn.Linear(5, 3)

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.first(x)))
        return self.out(torch.relu(self.second(hidden)).mean((2, 3)))


@pytest.mark.parametrize("way", [RowWay(True, 1), RowWay(True, 2), RowWay(False, 1), RowWay(False, 2), RowWay(True, 3)])
@pytest.mark.parametrize("batched", [False, True])
def test_products_of_a_network_with_every_way(way, batched, monkeypatch):
    chosen = []
    monkeypatch.setattr(RowSizes, "way", lambda self, x: chosen.append(self.num_rows) or way)
    if not batched:
        monkeypatch.setattr("dnn2gp.features.engines.layerwise.recording._WORTH_A_PASS", 0)
    torch.manual_seed(0)
    module, x = Small().double().eval(), torch.randn(5, 3, 17, 17, dtype=torch.float64)
    jacobian = brute_force.jacobian(module, x)
    features = LayerwiseFeatures(Network(module, x), x)
    chosen.clear()
    precision = DiagonalPrecision(torch.full((features.num_weights,), 4.0, dtype=torch.float64))
    expected = torch.einsum("nkp,mlp->nkml", jacobian, jacobian) / 4
    torch.testing.assert_close(features.kernel_full(x, precision), expected)
    torch.testing.assert_close(features.covariance(x, precision), torch.einsum("nknl->nkl", expected))
    u = torch.randn(5, 3, dtype=torch.float64)
    sums, squares = features.gradient_moments(x, lambda outputs, part: u[part])
    each = torch.einsum("nkp,nk->np", jacobian, u)
    torch.testing.assert_close(sums, each.sum(0))
    torch.testing.assert_close(squares, each.square().sum(0))
    assert {1, 3} <= set(chosen)  # rows are formed for one cotangent and for all outputs


@pytest.mark.parametrize(
    ("kernel", "channels", "side", "num_rows", "expected"),
    [
        (3, (16, 8), 12, 1, RowWay(True, 1)),  # patches are used once
        (3, (16, 8), 12, 4, RowWay(False, 4)),  # four cotangents share them
        (3, (32, 64), 28, 10, RowWay(True, 1)),  # they do not stay in the cache
        (3, (32, 16), 28, 10, RowWay(False, 10)),  # too few channels
        (1, (64, 64), 28, 1, RowWay(False, 1)),  # the input is its own patches
        (3, (1, 1), 4, 4, RowWay(False, 4)),  # too small
    ],
)
def test_the_way_depends_on_sizes_alone(kernel, channels, side, num_rows, expected, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    geometry = Geometry((kernel, kernel), (1, 1), ((kernel // 2, kernel // 2),) * 2, (1, 1), 1)
    sizes = RowSizes(geometry, (channels[0], side, side), (channels[1], side, side), num_rows)
    x = torch.zeros(2, *sizes.inputs)
    assert sizes.way(x) == expected
    assert sizes.way(x.double()) == RowWay(False, expected.at_once if not expected.grouped else min(num_rows, 10))
