"""Posteriors over chosen layers: the GP of a network whose other weights are frozen."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dnn2gp import GaussianLikelihood, convert, load, save
from dnn2gp.support.errors import InputError
from dnn2gp.weights.structures import BlockDiagonal, Dense, Diagonal, Kronecker

from robust.support import untouched

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


class Backwards(nn.Module):
    """The layer that is declared first is used last."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, 2), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return self.head(self.body(x))


@pytest.fixture
def problem():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Backwards().double(), torch.randn(7, 3).double(), torch.randn(7, 2).double()


def frozen(module, keep):
    module = copy.deepcopy(module)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(any(name.startswith(k) for k in keep))
    return module


def same(gp, other, x):
    torch.testing.assert_close(gp.predict(x).variance, other.predict(x).variance, rtol=1e-12, atol=0)
    torch.testing.assert_close(gp.predict(x).mean, other.predict(x).mean, rtol=1e-12, atol=0)
    assert gp.evidence().value == pytest.approx(other.evidence().value, rel=1e-12)
    assert gp.network.layout.names == other.network.layout.names


@pytest.mark.parametrize("structure", [Dense(), BlockDiagonal(), Kronecker(), Diagonal()])
def test_last_layer_is_the_network_with_all_else_frozen(problem, structure):
    module, x, y = problem
    with untouched(module):
        gp = convert(module, (x, y), GaussianLikelihood(0.5), 2.0, subset="last layer", structure=structure)
    same(gp, convert(frozen(module, ["head."]), (x, y), GaussianLikelihood(0.5), 2.0, structure=structure), x)


def test_names_and_modules(problem):
    module, x, y = problem
    wanted = convert(frozen(module, ["body.2.", "head.bias"]), (x, y), GaussianLikelihood(0.5), 2.0)
    for subset in (["body.2", "head.bias"], [module.body[2], "head.bias"], ("head.bias", "body.2")):
        same(convert(module, (x, y), GaussianLikelihood(0.5), 2.0, subset=subset), wanted, x)
    same(
        convert(module, (x, y), GaussianLikelihood(0.5), 2.0, subset=module.body),
        convert(frozen(module, ["body."]), (x, y), GaussianLikelihood(0.5), 2.0),
        x,
    )


def test_structures_agree_where_they_are_exact(problem):
    """One layer: its block is the whole precision, and for a last layer with Gaussian noise so is KFAC."""
    module, x, y = problem
    gps = [
        convert(module, (x, y), GaussianLikelihood(0.5), 2.0, subset="last layer", structure=structure)
        for structure in (Dense(), BlockDiagonal(), Kronecker())
    ]
    for gp in gps[1:]:
        torch.testing.assert_close(gp.predict(x).epistemic, gps[0].predict(x).epistemic, rtol=1e-10, atol=0)
        assert gp.evidence().complexity == pytest.approx(gps[0].evidence().complexity, rel=1e-10)


def test_saved_and_loaded(problem, tmp_path):
    module, x, y = problem
    for structure in (Dense(), BlockDiagonal(), Kronecker()):
        gp = convert(module, (x, y), GaussianLikelihood(0.5), 2.0, subset="body.2", structure=structure)
        save(gp, tmp_path / "gp.safetensors")
        same(gp, load(tmp_path / "gp.safetensors", Backwards().double()), x)


@pytest.mark.parametrize(
    ("subset", "message"),
    [
        ("neck", "layer with trainable weights; got 'neck'"),
        ([], "expected at least one layer"),
        ("", "expected names of layers; got an empty string"),
        (nn.Linear(2, 2), "not part of it"),
        ([3], "expected names of layers"),
    ],
)
def test_what_is_no_subset(problem, subset, message):
    module, x, y = problem
    with pytest.raises(InputError, match=rf"{message}.*The layers with trainable weights are \['head', 'body.0'"):
        convert(module, (x, y), GaussianLikelihood(0.5), 2.0, subset=subset)


def test_frozen_weights_stay_frozen(problem):
    module, x, y = problem
    module.body[2].weight.requires_grad_(False)
    gp = convert(module, (x, y), GaussianLikelihood(0.5), 2.0, subset="body.2")
    assert gp.network.layout.names == ("body.2.bias",)


class Odd(nn.Module):
    """A head without a layer rule, or one that nothing uses, after the layers that matter."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.a, self.b, self.c = kind, nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 5)
        if kind == "normed":
            self.b = nn.utils.parametrizations.weight_norm(self.b)

    def forward(self, x):
        hidden = torch.tanh(self.a(x))
        if self.kind == "einsum":
            return torch.einsum("ni,oi->no", hidden, self.b.weight) + 0 * self.c(hidden).detach().sum()
        out = self.b(hidden)
        self.c(hidden)
        return out


@pytest.mark.filterwarnings("ignore:No layer rule")
@pytest.mark.parametrize("kind", ["normed", "einsum", "auxiliary"])
def test_the_last_layer_is_the_one_that_the_outputs_depend_on(problem, kind):
    _, x, y = problem
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Odd(kind).double()
    gp = convert(module, (x, y), GaussianLikelihood(0.5), 2.0, subset="last layer")
    assert {name.split(".")[0] for name in gp.network.layout.names} == {"b"}
    assert len(gp.network.layout.names) == (3 if kind == "normed" else 2)
