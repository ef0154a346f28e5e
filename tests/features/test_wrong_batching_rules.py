"""Layers for which torch's batching rules are wrong: plain passes take over, and a warning says so."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from dnn2gp import GaussianLikelihood, convert
from dnn2gp.features import JacobianFeatures, LayerwiseFeatures
from dnn2gp.network import Network
from dnn2gp.support.errors import FallbackWarning

from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


class Distances(nn.Module):
    """An RBF network; with `fixed`, the centres have no derivative, but the layer before them does."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.fixed, self.inner, self.centres = fixed, nn.Linear(3, 3), nn.Parameter(torch.randn(5, 3))
        self.out = nn.Linear(5, 2)

    def forward(self, x):
        left, right = (self.inner(x), self.centres.detach()) if self.fixed else (x, self.centres)
        return self.out(torch.exp(-torch.cdist(left, right)))


class Solve(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.right = nn.Linear(3, 9), nn.Linear(3, 3)

    def forward(self, x):
        A = self.matrix(x).view(-1, 3, 3)
        return torch.linalg.solve(A @ A.mT + torch.eye(3, dtype=x.dtype), self.right(x))


NETWORKS = {"cdist": lambda: Distances(False), "cdist, fixed centres": lambda: Distances(True), "solve": Solve}


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return NETWORKS[name]().double(), torch.randn(7, 3, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.FallbackWarning")
@pytest.mark.parametrize("engine", [LayerwiseFeatures, JacobianFeatures])
@pytest.mark.parametrize("name", NETWORKS)
def test_products_are_those_of_plain_passes(name, engine):
    module, x = made(name)
    features, J = engine(Network(module, x), x), brute_force.jacobian(module, x)
    vectors = torch.randn(J.shape[2], 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cotangents = torch.randn(7, J.shape[1], 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def close(found, expected):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)

    close(features.jacobian(x), J)
    close(features.jvp(x, vectors), J @ vectors)
    close(features.vjp(x, cotangents), torch.einsum("nkp,nks->ps", J, cotangents))
    close(features.factors(x, cotangents).rows(), cotangents.mT @ J)


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.FallbackWarning")
def test_epistemic_variance_of_an_rbf_network():
    module, x = made("cdist")
    J = brute_force.jacobian(module, x).flatten(0, 1)
    precision = torch.eye(J.shape[1], dtype=torch.float64) + J.T @ J / 0.25
    expected = (J @ torch.linalg.solve(precision, J.T)).diagonal().view(7, 2)
    gp = convert(module, (x, torch.zeros(7, 2, dtype=torch.float64)), GaussianLikelihood(0.5), 1.0)
    torch.testing.assert_close(gp.predict(x).epistemic, expected, rtol=1e-9, atol=1e-12)


def test_a_wrong_rule_is_told():
    module, x = made("solve")
    with pytest.warns(FallbackWarning, match=r"torch\.func"):
        JacobianFeatures(Network(module, x), x).jacobian(x)


_CRASH = """
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from dnn2gp.features import JacobianFeatures
from dnn2gp.network import Network

class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    def forward(self, x):
        return torch.OP(self.shift, x, self.scale, value=0.5).sin()

x = torch.randn(7, 3)
features = JacobianFeatures(Network(Scaled(), x), x)
v = torch.randn(6, 1)
expected = features.jacobian(x) @ v
torch.testing.assert_close(features.jvp(x, v), expected)
with Watching():
    torch.testing.assert_close(features.jvp(x, v), expected)
print("right")
"""


@pytest.mark.slow
@pytest.mark.parametrize("function", ["addcmul", "addcdiv"])
def test_forward_mode_and_dispatch_modes_do_not_meet(function):
    """Together, they crash the interpreter inside torch."""
    done = subprocess.run([sys.executable, "-c", _CRASH.replace("OP", function)], capture_output=True, text=True)
    assert done.stdout == "right\n", done.stderr
