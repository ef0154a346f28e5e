"""Frozen weights: shared with the user's module, and never silently different from what they were."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from dnn2gp import GaussianLikelihood, convert
from dnn2gp.network import Network
from dnn2gp.support.errors import NetworkError


def x() -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def adapted() -> nn.Sequential:
    """A frozen layer and a trained one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 500), nn.Tanh(), nn.Linear(500, 2))
    module[0].requires_grad_(False)
    return module


def _no_grad(module):
    with torch.no_grad():
        module[0].weight.mul_(2)


def _load(module):
    module.load_state_dict({name: 2 * value for name, value in module.state_dict().items()})


def _train(module):
    module.requires_grad_(True)
    module(x()).sum().backward()
    torch.optim.Adam(module.parameters()).step()


@pytest.mark.parametrize("change", [_no_grad, _load, _train])
def test_a_change_in_place_is_an_error(change):
    module = adapted()
    gp = convert(module, (x(), torch.zeros(4, 2)), GaussianLikelihood(1.0), 1.0)
    change(module)
    with pytest.raises(NetworkError, match=r"'0\.weight'"):
        gp.predict(x())


def test_other_tensors_in_their_place_change_nothing():
    module = adapted()
    network, expected = Network(module, x()), module(x()).detach()
    module.double()
    module[0].weight = nn.Parameter(torch.zeros(500, 3))
    torch.testing.assert_close(network(network.weights, x()), expected)


def test_a_deep_copy_shares_them_and_a_pickled_one_does_not():
    module = adapted()
    network = Network(module, x())
    expected = network(network.weights, x())
    same, other = copy.deepcopy(network), pickle.loads(pickle.dumps(network))
    assert same.weights.data_ptr() != network.weights.data_ptr()
    assert same.state()["0.weight"].data_ptr() == module[0].weight.data_ptr()
    _no_grad(module)
    assert torch.equal(other(other.weights, x()), expected)


def test_a_restricted_network_is_pickled_without_the_vector_it_was_cut_from():
    module = adapted().requires_grad_(True)
    network = Network(module, x())
    few = network.restricted(["2.bias"])
    copied = pickle.loads(pickle.dumps(few))
    assert torch.equal(copied(copied.weights, x()), network(network.weights, x()))
    assert len(pickle.dumps(few)) < 3 * 4 * network.num_weights
