"""A regression that could interpolate: some rows occur twice with the same target, and the network has many weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp import ByEvidence, GaussianLikelihood, LinearisedMode, NetworkOutput, convert

pytestmark = pytest.mark.filterwarnings("ignore")


def _data(seed: int = 0):
    """Whole-number targets with noise; every third row occurs twice, with the same target."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(90, 4, generator=generator, dtype=torch.float64)
    y = (x[:, :1] + 0.8 * torch.randn(90, 1, generator=generator, dtype=torch.float64)).round()
    train, test = (x[:60], y[:60]), (x[60:], y[60:])
    return tuple(torch.cat([own, own[::3]]) for own in train), test


def _trained(x, y):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 1)).double()
        optimizer = torch.optim.Adam(network.parameters(), 3e-3)
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(x), y).backward()
            optimizer.step()
    return network


def test_twins_do_not_make_the_noise_vanish():
    (x, y), (x_test, y_test) = _data()
    network = _trained(x, y)

    def error(gp):
        return (gp.predict(x_test).mean - y_test).square().mean().sqrt().item()

    gp = convert(network, (x, y), GaussianLikelihood())
    interpolating = convert(network, (x, y), GaussianLikelihood(), ByEvidence(at=LinearisedMode()))
    assert interpolating.likelihood.sigma < 0.01
    assert gp.likelihood.sigma > 0.3
    assert error(gp) < 0.8 * error(interpolating)
    at_weights = convert(network, (x, y), GaussianLikelihood(), ByEvidence(at=NetworkOutput()))
    assert gp.tuning.best == at_weights.tuning.best
