"""Convolutions whose output goes into a max-pooling: gradients of the windows alone, compared with the explicit J."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp.features import LayerwiseFeatures
from dnn2gp.features.engines.layerwise.rules.convolution import PooledConvolutionUse
from dnn2gp.network import Network
from dnn2gp.weights.structures import DiagonalPrecision

from reference import brute_force

OUTPUTS = 8


class Pooled(nn.Module):
    """convolution → (ReLU) → max-pooling → Linear; `other` adds a second reader of the convolution or of its ReLU."""

    def __init__(
        self, conv: nn.Module, pool: nn.Module, between: nn.Module, other: str, shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.conv, self.pool, self.between, self.other = conv, pool, between, other
        self.out = nn.LazyLinear(OUTPUTS)
        self.double()(torch.zeros(2, *shape, dtype=torch.float64))

    def forward(self, x):
        z = self.conv(x)
        if self.other == "hook" and z.requires_grad:
            z.register_hook(lambda gradient: 2 * gradient)
        hidden = self.between(z)
        parts = [self.pool(hidden)]
        if self.other == "changed":
            parts[0].mul_(3).relu_()
        if self.other == "changed in part":
            parts[0][:, :1].mul_(-2)
        if self.other == "twice":
            parts.append(self.pool(hidden).square())
        if self.other == "before":
            parts.append(z.sin())
        if self.other == "after":
            parts.append(hidden.sin())
        return self.out(torch.cat([part.flatten(1) for part in parts], 1))


CASES = {
    "2d": (nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.ReLU(), "", (1, 9, 9)),
    "directly": (nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.Identity(), "", (1, 9, 9)),
    "no bias": (nn.Conv2d(1, 3, 2, bias=False), nn.MaxPool2d(3), nn.ReLU(), "", (1, 10, 10)),
    "overlap": (nn.Conv2d(1, 3, 1), nn.MaxPool2d(4, 3, 1, ceil_mode=True), nn.ReLU(), "", (1, 10, 10)),
    "dilation, stride": (nn.Conv2d(1, 3, 1, stride=2), nn.MaxPool2d(2, 3, dilation=2), nn.ReLU(), "", (1, 20, 20)),
    "1d": (nn.Conv1d(1, 3, 3, padding=1), nn.MaxPool1d(4), nn.ReLU(), "", (1, 40)),
    "changed after": (nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.Identity(), "changed", (1, 9, 9)),
    "changed in part": (nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.Identity(), "changed in part", (1, 9, 9)),
    "3d": (nn.Conv3d(1, 2, 2), nn.MaxPool3d(2), nn.ReLU(), "", (1, 5, 5, 5)),
}
OTHERS = {
    "pooled twice": (nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.Identity(), "twice", (1, 9, 9)),
    "read before": (nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.ReLU(), "before", (1, 9, 9)),
    "read after": (nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.ReLU(), "after", (1, 9, 9)),
    "in place": (nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.ReLU(inplace=True), "", (1, 9, 9)),
    "few positions": (nn.Conv2d(1, 3, 5), nn.MaxPool2d(2), nn.ReLU(), "", (1, 9, 9)),
    "hook": (nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.ReLU(), "hook", (1, 9, 9)),
    "over channels": (nn.Conv2d(1, 4, 2), nn.MaxPool3d(2), nn.ReLU(), "", (1, 9, 9)),
    "groups": (nn.Conv2d(2, 4, 1, groups=2), nn.MaxPool2d(2), nn.ReLU(), "", (2, 9, 9)),
}


@pytest.fixture
def condensed(monkeypatch) -> list[int]:
    """The number of cotangents of each time that the gradients of windows were used."""
    counts: list[int] = []
    own = PooledConvolutionUse.condensed

    def counted(self, gradients):
        counts.append(len(gradients))
        return own(self, gradients)

    monkeypatch.setattr(PooledConvolutionUse, "condensed", counted)
    return counts


def made(case) -> tuple[nn.Module, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Pooled(*case)
        for weight in module.parameters():
            nn.init.normal_(weight)
        return module, torch.randn(5, *case[-1], dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_jacobian(name, condensed):
    module, x = made((CASES | OTHERS)[name])
    features = LayerwiseFeatures(Network(module, x), x)
    expected = brute_force.jacobian(module, x)
    torch.testing.assert_close(features.jacobian(x), expected, rtol=1e-12, atol=1e-12)
    assert bool(condensed) == (name in CASES)
    precision = torch.rand(expected.shape[2], generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
    covariance = features.covariance(x, DiagonalPrecision(precision))
    torch.testing.assert_close(covariance, expected / precision @ expected.mT, rtol=1e-12, atol=1e-12)


def test_examples_share_their_axis_with_frames(condensed):
    """Each example is five frames that the convolution sees as examples."""

    class Frames(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.out = nn.Conv2d(1, 3, 2), nn.Linear(3 * 16, OUTPUTS)

        def forward(self, x):
            pooled = nn.functional.max_pool2d(self.conv(x.flatten(0, 1)).relu(), 2)
            return self.out(pooled.flatten(1).unflatten(0, x.shape[:2]).sum(1))

    torch.manual_seed(0)
    module, x = Frames().double(), torch.randn(4, 5, 1, 9, 9, dtype=torch.float64)
    features = LayerwiseFeatures(Network(module, x), x)
    torch.testing.assert_close(features.jacobian(x), brute_force.jacobian(module, x), rtol=1e-12, atol=1e-12)
    assert OUTPUTS in condensed


def test_one_output_and_a_large_window(condensed):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(5), nn.Flatten(), nn.Linear(8, 1)]
    module, x = nn.Sequential(*layers).double(), torch.randn(4, 1, 11, 11, dtype=torch.float64)
    features = LayerwiseFeatures(Network(module, x), x)
    torch.testing.assert_close(features.jacobian(x), brute_force.jacobian(module, x), rtol=1e-12, atol=1e-12)
    assert 1 in condensed


def test_equal_entries_have_the_derivative_of_the_pooling():
    module, x = made(CASES["overlap"])
    x = x.round()
    features = LayerwiseFeatures(Network(module, x), x)
    torch.testing.assert_close(features.jacobian(x), brute_force.jacobian(module, x), rtol=1e-12, atol=1e-12)


def test_few_cotangents_use_all_positions(condensed):
    module, x = made(CASES["2d"])
    features = LayerwiseFeatures(Network(module, x), x)
    condensed.clear()
    u = torch.randn(5, OUTPUTS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = features.pull_each(x, u)
    assert not condensed
    expected = torch.einsum("nkp,nk->np", brute_force.jacobian(module, x), u)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
