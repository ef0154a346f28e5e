"""The output for an example must depend on that example alone, wherever in the batch the dependence shows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp import GaussianLikelihood, convert
from dnn2gp.features import JacobianFeatures, LayerwiseFeatures
from dnn2gp.network import Network
from dnn2gp.network.separate import separate
from dnn2gp.support.errors import NetworkError


class Mixed(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.inner, self.mix, self.outer = nn.Linear(3, 4), mix, nn.Linear(4, 1)

    def forward(self, x):
        return self.outer(self.mix(self.inner(x)))


class Recurrent(nn.Module):
    """nn.GRU with batch_first forgotten: the examples are taken for steps of time."""

    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0])


def late(start: int):
    """Mixes an example with its neighbour, but only from `start` on."""

    def mix(h):
        return torch.cat([h[:start], h[start:] + 0.1 * h[start - 1 : start]]) if len(h) > start else h

    return mix


MIXES = {
    "centred": lambda h: h - h.mean(0),
    "less the first": lambda h: h - h[:1],
    "less the last": lambda h: h - h[-1:],
    "cumsum": lambda h: h.cumsum(0),
    "neighbour": lambda h: h + h.roll(1, 0),
    "largest": lambda h: h / h.abs().max(),
    "rank": lambda h: h + h.argsort(0).to(h.dtype),
    "third": late(2),
}


def data(count: int = 40) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", MIXES)
def test_refused(name):
    torch.manual_seed(0)
    with pytest.raises(NetworkError, match="depends on the rest of the batch"):
        Network(Mixed(MIXES[name]).double(), data())


def test_gru_without_batch_first_is_refused():
    torch.manual_seed(0)
    with pytest.raises(NetworkError, match="batch_first"):
        Network(Recurrent().double(), data())


@pytest.mark.parametrize("count", [2, 3, 17])
def test_few_examples_suffice(count):
    torch.manual_seed(0)
    with pytest.raises(NetworkError, match="depends on the rest of the batch"):
        Network(Mixed(MIXES["cumsum"]).double(), data(count))


@pytest.mark.parametrize("start", [9, 20, 38])
def test_convert_looks_at_all_examples(start):
    torch.manual_seed(0)
    x = data()
    with pytest.raises(NetworkError, match="depends on the rest of the batch"):
        convert(Mixed(late(start)).double(), (x, x[:, :1]), GaussianLikelihood(1.0), 1.0)


@pytest.mark.parametrize("features", [LayerwiseFeatures, JacobianFeatures])
def test_small_outputs_show_it_too(features):
    """Outputs of 1e-6 in float32, whose differences are below the precision of numbers near 1."""

    class Small(Mixed):
        def forward(self, x):
            return 1e-6 * super().forward(x)

    torch.manual_seed(0)
    x = data().float()
    convert(Small(torch.tanh), (x, x[:, :1]), GaussianLikelihood(1.0), 1.0, features=features)
    with pytest.raises(NetworkError, match="depends on the rest of the batch"):
        convert(Small(late(9)), (x, x[:, :1]), GaussianLikelihood(1.0), 1.0, features=features)


def test_independent_networks_are_accepted():
    torch.manual_seed(0)
    Network(Mixed(lambda h: h - h.mean(1, keepdim=True)).double(), data())
    Network(Mixed(torch.tanh).double(), data(1))


@pytest.mark.parametrize("features", [LayerwiseFeatures, JacobianFeatures])
@pytest.mark.parametrize("mix", ["less the first", "centred", "cumsum"])
def test_outputs_that_hide_the_company(mix, features):
    """Rounded outputs with the gradient of what was rounded: these differ, though the outputs are all the same."""

    def hidden(h):
        mixed = MIXES[mix](h) / 1e3
        return mixed + (mixed.round() - mixed).detach()

    torch.manual_seed(0)
    x = data()
    with pytest.raises(NetworkError, match=r"derivatives .* depend on the rest of the batch"):
        convert(Mixed(hidden).double(), (x, x[:, :1]), GaussianLikelihood(1.0), 1.0, features=features)


class Rescaled(nn.Module):
    """Divides whole batches that look like bytes by 255."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, x):
        return self.inner(x / 255 if x.max() > 9 else x)


@pytest.mark.parametrize("call", ["predict", "mean", "covariance", "kernel", "samples"])
def test_a_dependence_that_only_new_inputs_show_is_refused(call):
    torch.manual_seed(0)
    x = torch.randn(20, 3, dtype=torch.float64)
    gp = convert(Rescaled().double(), (x, torch.randn(20, 2).double()), GaussianLikelihood(1.0), 1.0)
    new = torch.cat([x[:3], 100 * x[3:5].abs()])
    calls = {
        "predict": gp.predict,
        "mean": gp.mean,
        "covariance": gp.covariance,
        "kernel": lambda inputs: gp.kernel.full(x[:2], inputs),
        "samples": gp.sample_functions(2),
    }
    with pytest.raises(NetworkError, match="rest of the batch"):
        calls[call](new)
    calls[call](new[:3])
    calls[call](new[3:])
    calls[call](new[:1])


def test_networks_that_need_no_check_are_recognised():
    layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(8, 2))]
    assert separate(nn.Sequential(*layers))
    assert not separate(nn.Sequential(*layers, Mixed(torch.tanh)))
    assert not separate(nn.Sequential(nn.Flatten(0), nn.Linear(3, 1)))
    assert not separate(nn.BatchNorm1d(3, track_running_stats=False))
    hooked = nn.Linear(3, 1)
    hooked.register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    assert not separate(nn.Sequential(hooked))
    assert not separate(nn.utils.parametrizations.weight_norm(nn.Linear(3, 1)))
