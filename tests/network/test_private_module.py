"""The module that a Network runs: a private copy, one for each thread, or the user's own under a lock."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dnn2gp.network import Network
from dnn2gp.network.private_module import LockedModule, PrivateModule

from reference import brute_force
from robust.support import untouched


def x(count: int = 4) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def mlp() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double().eval()


def test_a_plain_module_is_copied():
    assert isinstance(Network(mlp(), x())._owner, PrivateModule)


def _retrain(module: nn.Sequential) -> None:
    for parameter in module.parameters():
        parameter.data.add_(1)


def _replace(module: nn.Sequential) -> None:
    module[3] = nn.Linear(4, 2).double()


def _train(module: nn.Sequential) -> None:
    module.train()
    module(x())


def _hook(module: nn.Sequential) -> None:
    module[0].register_forward_hook(lambda layer, args, out: 2 * out)


def _convert(module: nn.Sequential) -> None:
    module.float()


@pytest.mark.parametrize("change", [_retrain, _replace, _train, _hook, _convert])
def test_later_changes_do_not_reach_the_network(change):
    module = mlp()
    network, expected = Network(module, x()), module(x()).detach()
    change(module)
    torch.testing.assert_close(network(network.weights, x()), expected)
    with ThreadPoolExecutor(1) as other:  # where the copy is made now
        torch.testing.assert_close(other.submit(network, network.weights, x()).result(), expected)


def test_frozen_weights_are_shared_by_all_copies():
    module = mlp()
    module[0].requires_grad_(False)
    network = Network(module, x())
    owners = [network._owner, network.restricted(["3.bias"])._owner]
    owners += [ThreadPoolExecutor(1).submit(lambda: (network(network.weights, x()), network._owner)[1]).result()]
    for owner in owners:
        assert owner._template[0].weight.data_ptr() == module[0].weight.data_ptr()
    assert network.state()["0.weight"].data_ptr() == module[0].weight.data_ptr()


class Uncopyable(nn.Module):
    """Holds a lock, which has no copy; sets attributes and works in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.lock, self.last = mlp(), threading.Lock(), None

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            self.last = x
        return self.layers(x)


class Closure(nn.Module):
    """A forward that was replaced by a function of the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()
        self.forward = lambda x: self.layers(x)


class Registry(nn.Module):
    """Finds one of its layers outside of its structure."""

    found: dict = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()
        Registry.found["last"] = self.layers[3]

    def forward(self, x: Tensor) -> Tensor:
        return Registry.found["last"](self.layers[:3](x))


class Scaled(torch.autograd.Function):
    """Not seen by function modes."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


def hooked() -> nn.Module:
    module = mlp()
    weight = module[3].bias
    module.register_forward_hook(lambda layer, args, out: Scaled.apply(out, weight))
    return module


@pytest.mark.parametrize("build", [Uncopyable, Closure, Registry, hooked])
def test_a_module_without_a_copy_of_its_own_is_used_itself(build):
    module = build().double().eval()
    module.train(False)
    with untouched(module):
        network = Network(module, x())
        found = network(network.weights, x())
        moved = network(network.weights + 0.1, x())
    assert isinstance(network._owner, LockedModule)
    torch.testing.assert_close(found, module(x()).detach())
    if build is not hooked:  # its hook always takes the weight as it is
        torch.testing.assert_close(
            moved, brute_force.outputs(brute_force.with_weights(mlp(), network.weights + 0.1), x())
        )


@pytest.mark.parametrize("build", [mlp, Uncopyable])
def test_threads_do_not_see_the_weights_of_others(build):
    module = build()
    with untouched(module):
        network = Network(module, x())
        points = [network.weights + 0.01 * step for step in range(40)]
        expected = [network(point, x()) for point in points]
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda point: network(point, x()), points * 5))
    assert all(torch.equal(a, b) for a, b in zip(found, expected * 5, strict=True))


class Checkpointed(nn.Module):
    def __init__(self, on: bool) -> None:
        super().__init__()
        self.layers, self.on = mlp(), on

    def forward(self, x: Tensor) -> Tensor:
        if not self.on:
            return self.layers(x)
        return self.layers[3](checkpoint(self.layers[:3], x, use_reentrant=False))


@pytest.mark.slow
def test_gradient_checkpointing_at_other_weights():
    """What the backward pass computes again must have the weights of the forward pass, not those of the module."""
    gradients = []
    for on in (False, True):
        network = Network(Checkpointed(on), x())
        weights = (0.5 * network.weights + 0.3).requires_grad_(True)
        gradients += torch.autograd.grad(network(weights, x()).square().sum(), weights)
    torch.testing.assert_close(*gradients)


def test_attributes_do_not_pile_up_on_the_copy():
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(3, 2).double(), []

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(x)
            return self.layer(x) * len(self.seen)

    network = Network(Growing(), x())
    first = network(network.weights, x())
    for _ in range(3):
        assert torch.equal(network(network.weights, x()), first)
    ((own, *_),) = [network._owner._local.free]
    assert own._module.seen == []


def test_attention_settings_are_restored_when_the_last_thread_leaves():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    module = nn.Sequential(nn.Linear(3, 4), layer, nn.Flatten()).double().eval()
    inputs = torch.randn(4, 2, 3, dtype=torch.float64)
    with untouched(module):
        network = Network(module, inputs)
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda _: network(network.weights, inputs), range(60)))
    assert all(torch.equal(each, found[0]) for each in found)
