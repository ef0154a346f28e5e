"""Weights that a network views as complex numbers, which torch does only at even places of memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp import GaussianLikelihood, convert
from dnn2gp.features import JacobianFeatures, LayerwiseFeatures

from reference import brute_force

pytestmark = pytest.mark.filterwarnings(
    "ignore::dnn2gp.support.errors.NotAMinimumWarning", "ignore::dnn2gp.support.errors.FallbackWarning"
)


class Rotation(nn.Module):
    """A layer with an odd number of weights, and complex factors behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.factors, self.out = (
            nn.Parameter(torch.randn(1)),
            nn.Parameter(torch.randn(2, 2)),
            nn.Linear(4, 2),
        )

    def forward(self, x):
        z = torch.view_as_complex((x + self.shift).unflatten(1, (2, 2))) * torch.view_as_complex(self.factors)
        return self.out(torch.view_as_real(z).flatten(1))


@pytest.mark.parametrize("features", [LayerwiseFeatures, JacobianFeatures])
@pytest.mark.parametrize("subset", [None, "last layer", ["shift", "factors"]])
def test_jacobian(features, subset):
    torch.manual_seed(0)
    module, x, y = Rotation().double(), torch.randn(5, 4).double(), torch.randn(5, 2).double()
    gp = convert(module, (x, y), GaussianLikelihood(1.0), 1.0, features=features, subset=subset)
    for name, weight in module.named_parameters():
        weight.requires_grad_(subset is None or name.startswith("out") == (subset == "last layer"))
    torch.testing.assert_close(gp.features.jacobian(x), brute_force.jacobian(module, x))
