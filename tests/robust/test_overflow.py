"""Numbers that overflow are announced; targets and likelihoods that do not fit the network are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp import CategoricalLikelihood, GaussianLikelihood, PoissonLikelihood, convert
from dnn2gp.support.errors import InputError, NotFiniteError

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
X = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))


def linear(outputs: int = 1, bias: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Linear(2, outputs)
    nn.init.constant_(module.bias, bias)
    return module


def test_rates_that_overflow():
    with pytest.raises(NotFiniteError, match="float32"):
        convert(linear(bias=95.0), (X, torch.ones(8, 1)), PoissonLikelihood(), 1.0)


def test_noise_that_is_too_small():
    with pytest.raises(NotFiniteError, match="σ"):
        convert(linear(), (X, torch.ones(8, 1)), GaussianLikelihood(1e-20), 1.0)


def test_inputs_at_which_the_prediction_overflows():
    gp = convert(linear(), (X, torch.ones(8, 1)), GaussianLikelihood(1.0), 1.0)
    assert gp.predict(X).std.isfinite().all()
    with pytest.raises(NotFiniteError, match="input 0"):
        gp.predict(torch.full((1, 2), 3e38))


class Grid(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 6)

    def forward(self, x):
        return self.layer(x).view(-1, 2, 3)


def test_targets_with_the_axes_of_other_outputs():
    with pytest.raises(InputError, match="targets"):
        convert(Grid(), (X, torch.zeros(8, 3, 2)), GaussianLikelihood(1.0), 1.0)


@pytest.mark.parametrize("shape", [(8, 2, 3), (8, 6), (8, 1, 2, 3)])
def test_targets_that_flatten_like_the_outputs(shape):
    convert(Grid(), (X, torch.zeros(shape)), GaussianLikelihood(1.0), 1.0)


@pytest.mark.parametrize("count", [0, True])
def test_counts_that_are_none(count):
    prediction = convert(linear(), (X, torch.ones(8, 1)), GaussianLikelihood(1.0), 1.0).predict(X)
    for draw in (prediction.monte_carlo, prediction.sample_latent, prediction.sample):
        with pytest.raises(InputError, match="num_samples"):
            draw(count)


def test_noise_that_no_float_can_hold():
    with pytest.raises(InputError, match="sigma"):
        GaussianLikelihood(10**400)


def test_more_data_of_another_likelihood():
    gp = convert(linear(3), (X, torch.zeros(8, 3)), GaussianLikelihood(1.0), 1.0)
    gp.condition((X, torch.zeros(8, 3)), GaussianLikelihood(0.5))
    with pytest.raises(InputError, match="likelihood"):
        gp.condition((X, torch.zeros(8, dtype=torch.long)), CategoricalLikelihood())
