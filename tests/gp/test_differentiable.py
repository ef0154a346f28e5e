"""Predictions and kernels differentiated with respect to the inputs, against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from dnn2gp import GaussianLikelihood, convert
from dnn2gp.features import JacobianFeatures, LayerwiseFeatures
from dnn2gp.inference import FunctionSpace, WeightSpace
from dnn2gp.weights.structures import Diagonal, Kronecker

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")

NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (3,)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 2)),
        (1, 3, 3),
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)),
        (2, 2, 3),
    ),
    "many positions": (  # where nothing is differentiated, rows are made one cotangent after the other
        lambda: nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(32, 2)),
        (1, 17),
    ),
}
SETTINGS = {
    "weight space": {"inference": WeightSpace()},
    "function space": {"inference": FunctionSpace()},
    "kronecker": {"structure": Kronecker()},
    "diagonal": {"structure": Diagonal()},
    "general engine": {"features": JacobianFeatures, "inference": FunctionSpace()},
}


def make(name, **settings):
    build, shape = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = build().double()
        x, y, new = torch.randn(6, *shape).double(), torch.randn(6, 2).double(), torch.randn(2, *shape).double()
    return convert(module, (x, y), GaussianLikelihood(0.5), 1.0, **settings), new


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(("mlp", settings) for settings in SETTINGS),
        *(("convolution", settings) for settings in SETTINGS),
        ("group norm", "function space"),
        ("many positions", "function space"),
    ],
)
def test_predictions(name, settings):
    gp, new = make(name, **SETTINGS[settings])
    new.requires_grad_(True)

    def moments(x):
        prediction = gp.predict(x)
        return prediction.mean, prediction.variance

    assert gradcheck(moments, (new,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine"),
    [*((name, LayerwiseFeatures) for name in NETWORKS), ("mlp", JacobianFeatures), ("convolution", JacobianFeatures)],
)
def test_kernels(name, engine):
    gp, new = make(name, features=engine)
    new.requires_grad_(True)
    other = new.detach()[:1] + 0.1

    def kernels(x):
        return gp.kernel.trace(x), gp.kernel.full(x, other), gp.kernel.diagonal(x), gp.covariance(x)

    assert gradcheck(kernels, (new,))


def test_only_where_asked():
    gp, new = make("mlp")
    assert not gp.predict(new).variance.requires_grad
    new.requires_grad_(True)
    assert gp.predict(new).variance.requires_grad
    with torch.no_grad():
        assert not gp.predict(new).variance.requires_grad
    assert new.grad is None
