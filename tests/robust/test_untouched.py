"""The watch itself sees what it should; and what a call must leave alone, call by call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dnn2gp import (
    OGN,
    ON,
    VOGN,
    VON,
    FunctionSpace,
    GaussianLikelihood,
    GaussianProcess,
    Kernel,
    Kronecker,
    WeightSpace,
    convert,
    diagnose,
    load,
    save,
)
from dnn2gp.gp import sample_network
from dnn2gp.support.errors import InputError

from robust.support import DELTA, NOISE, mlp, regression, untouched

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


def _weights(module):
    module[0].weight.data.add_(1)


def _buffer(module):
    module[0].register_buffer("extra", torch.zeros(1))


def _mode(module):
    module[1].train()


def _frozen(module):
    module[2].bias.requires_grad_(False)


def _gradient(module):
    module[0].weight.grad.add_(1)


def _no_gradient(module):
    module[0].weight.grad = None


def _hook(module):
    module[2]._forward_hooks.clear()


def _replaced(module):
    module[0].weight = nn.Parameter(module[0].weight.detach().clone())


def _dtype(module):
    module.float()


def _attribute(module):
    module[0].last = torch.zeros(1)


GLOBALS = [lambda _: torch.rand(1), lambda _: np.random.rand()]
CHANGES = [_weights, _buffer, _mode, _frozen, _gradient, _no_gradient, _hook, _replaced, _dtype, _attribute, *GLOBALS]


@pytest.mark.parametrize("change", CHANGES)
def test_the_watch_sees_a_change(change) -> None:
    module = mlp()
    with pytest.raises(AssertionError, match=r"changed|came or went"), untouched(module):
        change(module)


@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace()], ids=repr)
def test_every_call_leaves_the_network_alone(inference, tmp_path) -> None:
    module, (x, y) = mlp(), regression()
    with untouched(module):
        gp = convert(module, (x, y), NOISE, DELTA, inference=inference)
        prediction = gp.predict(x)
        prediction.sample(3)
        prediction.monte_carlo(3)
        gp.sample_functions(3)(x)
        gp.covariance(x)
        gp.mean(x)
        gp.prior_mean(x)
        gp.kernel.full(x)
        gp.evidence()
        gp.evidence_gradient()
        gp.condition((x, y)).predict(x)
        sample_network(gp, x, num_samples=3)
        diagnose(gp)
        Kernel.neural_tangent(module, x).trace(x)
        save(gp, tmp_path / "gp.safetensors")
        load(tmp_path / "gp.safetensors", module).predict(x)


def test_training_on_does_not_reach_the_gp() -> None:
    module, (x, y) = mlp(), regression()
    gp = convert(module, (x, y), NOISE, DELTA, inference=FunctionSpace())
    before = convert(module, (x, y), NOISE, DELTA, inference=FunctionSpace()).predict(x)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        ((module(x) - y) ** 2).sum().backward()
        optimiser.step()
    after = gp.predict(x)
    assert not torch.allclose(module(x), before.outputs)
    assert torch.equal(after.mean, before.mean)
    assert torch.equal(after.variance, before.variance)


def test_changing_the_data_in_place_does_not_reach_the_gp() -> None:
    module, (x, y) = mlp(), regression()
    mine, targets = x.clone(), y.clone()
    gp = convert(module, (mine, targets), NOISE, DELTA, inference=FunctionSpace())
    mine.zero_()
    targets.zero_()
    expected = convert(module, (x, y), NOISE, DELTA, inference=FunctionSpace()).predict(x)
    assert torch.equal(gp.predict(x).variance, expected.variance)
    assert torch.equal(gp.predict(x).mean, expected.mean)


def test_inputs_are_untouched_by_in_place_layers() -> None:
    torch.manual_seed(0)
    module, (x, y) = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)).double(), regression()
    before = x.clone()
    with untouched(module):
        convert(module, (x, y), NOISE, DELTA).predict(x)
    assert torch.equal(x, before)


def test_inputs_that_require_a_gradient_keep_none() -> None:
    module, (x, y) = mlp(), regression()
    x.requires_grad_(True)
    y.requires_grad_(True)
    with untouched(module):
        gp = convert(module, (x, y), NOISE, DELTA)
        prediction = gp.predict(x)
    assert x.requires_grad
    assert x.grad is None
    assert y.grad is None
    assert prediction.variance.requires_grad  # as asked for by x
    assert not gp.predict(x.detach()).variance.requires_grad  # the training data are not part of it


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_the_default_dtype_plays_no_part(dtype, default) -> None:
    module, (x, y) = mlp(dtype=dtype), regression(dtype=dtype)
    expected = convert(module, (x, y), NOISE, DELTA).predict(x)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with untouched(module):
            found = convert(module, (x, y), NOISE, DELTA).predict(x)
    finally:
        torch.set_default_dtype(before)
    assert found.variance.dtype == dtype
    assert torch.equal(found.variance, expected.variance)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace()], ids=repr)
def test_called_without_gradients(mode, inference) -> None:
    module, (x, y) = mlp(), regression()
    expected = convert(module, (x, y), NOISE, DELTA, inference=inference)
    with untouched(module), mode():
        inside = x.clone()
        gp = convert(module, (inside, y.clone()), NOISE, DELTA, inference=inference)
        found = gp.predict(inside)
        evidence = gp.evidence().value
        draws = gp.sample_functions(2, torch.Generator().manual_seed(0))(inside)
        gp.condition((inside, y.clone())).predict(inside)
        diagnose(gp)
    assert torch.equal(found.variance, expected.predict(x).variance)
    assert torch.equal(gp.predict(x).mean, expected.predict(x).mean)
    assert torch.equal(draws, expected.sample_functions(2, torch.Generator().manual_seed(0))(x))
    assert evidence == expected.evidence().value


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_tuned_without_gradients(mode) -> None:
    """The evidence is maximised by its gradient, which is switched on there."""
    module, (x, y) = mlp(), regression()
    expected = convert(module, (x, y), GaussianLikelihood())
    with untouched(module), mode():
        gp = convert(module, (x.clone(), y.clone()), GaussianLikelihood())
        best = expected.evidence_function().maximise()
        calibrated = expected.calibrated()
    assert torch.equal(gp.prior.precision.diagonal(), expected.prior.precision.diagonal())
    assert calibrated.calibration == expected.calibrated().calibration
    assert best.value == expected.evidence_function().maximise().value


@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace(), WeightSpace(Kronecker())], ids=repr)
def test_made_in_inference_mode_and_used_outside(inference, tmp_path: Path) -> None:
    """Derivatives with respect to inputs need tensors that were not made in inference mode."""
    module, (x, y) = mlp(), regression()
    expected = convert(module, (x, y), NOISE, DELTA, inference=inference)
    save(expected, tmp_path / "gp.safetensors")
    with torch.inference_mode():
        made = [convert(module, (x, y), NOISE, DELTA, inference=inference), load(tmp_path / "gp.safetensors", module)]
    if expected.inference.exact:
        with torch.inference_mode():
            made = [gp.condition((x[:2], y[:2])) for gp in made]
        expected = expected.condition((x[:2], y[:2]))

    def slope(gp: GaussianProcess) -> torch.Tensor:
        inputs = x.clone().requires_grad_(True)
        total = gp.predict(inputs).std.sum() + gp.covariance(inputs).sum() + gp.mean(inputs).sum()
        return torch.autograd.grad(total, inputs)[0]

    for gp in made:
        torch.testing.assert_close(slope(gp), slope(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("method", [OGN, VOGN, ON, VON])
def test_trained_without_gradients(mode, method) -> None:
    """A step inside and another one outside give what two steps outside give."""
    x, y = regression()
    modules = [mlp(), mlp()]
    first, second = (method(module, NOISE, len(x), prior_precision=100.0) for module in modules)
    first.step(x, y)
    with mode():
        second.step(x, y)
    first.step(x, y)
    second.step(x, y)
    for one, other in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_weights_made_in_inference_mode_cannot_be_trained() -> None:
    with torch.inference_mode():
        module = nn.Linear(2, 1)
    with pytest.raises(InputError, match="network"):
        OGN(module, NOISE, 5)
