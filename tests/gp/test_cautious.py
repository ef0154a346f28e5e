"""`convert` with a mean warns if the exact posterior makes probabilities too cautious."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from dnn2gp import CategoricalLikelihood, LinearisedMode, NetworkOutput, convert
from dnn2gp.support.errors import CautiousWarning

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


def _trained(num_classes: int):
    """A network with many more weights than it needs to separate clusters that are far apart."""
    torch.manual_seed(0)
    labels = torch.arange(60) % num_classes
    centres = 4 * torch.eye(num_classes, 6)
    x = (centres[labels] + torch.randn(60, 6)).double()
    network = nn.Sequential(nn.Linear(6, 60), nn.Tanh(), nn.Linear(60, num_classes)).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), labels).backward()
        optimizer.step()
    return network, (x, labels)


@pytest.mark.parametrize("mean", [NetworkOutput(), LinearisedMode()])
def test_a_wide_posterior_is_named(mean):
    network, data = _trained(5)
    with pytest.warns(CautiousWarning, match=r"gp\.calibrated"):
        gp = convert(network, data, CategoricalLikelihood(), 1e-3, mean=mean)
    with torch.no_grad():
        right = (network(data[0]).argmax(1) == data[1]).double().mean()
    assert gp.predict(data[0]).probabilities.amax(1).mean() < right - 0.1


def test_a_narrow_posterior_and_a_calibrated_one_are_not():
    network, data = _trained(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CautiousWarning)
        convert(network, data, CategoricalLikelihood(), 1e3, mean=NetworkOutput())
        convert(network, data, CategoricalLikelihood(), 1e-3)
        convert(network, data, CategoricalLikelihood(), 1e-3, mean=NetworkOutput(), validation=data)
