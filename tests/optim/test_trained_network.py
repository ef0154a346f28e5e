"""The network that an optimizer trains: statistics, frozen layers, gradients, and steps that fail."""

from __future__ import annotations

import copy

import pytest
import torch
from optimizing import fresh, normalised, normalised_1d
from torch import nn

from dnn2gp import OGGN, OGN, VOGN, CategoricalLikelihood, GaussianLikelihood
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import DivergedError, InputError

from problems import problem
from reference import brute_force


@pytest.mark.parametrize("kind", [VOGN, OGN, OGGN])
def test_batch_normalisation_uses_running_statistics(kind):
    """In train mode they are updated from each batch, as in a forward pass; the step itself sees them fixed."""
    module, x, y = normalised()
    twin = copy.deepcopy(module).train()
    optimizer = kind(module.train(), CategoricalLikelihood(), 24, lr=0.05)
    state = torch.random.get_rng_state()
    for _ in range(2):
        twin.load_state_dict({**twin.state_dict(), **dict(module.named_parameters())})
        twin.drop.eval()
        with torch.no_grad():
            twin(x)
        optimizer.step(x, y)
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(buffer, dict(twin.named_buffers())[name], rtol=1e-13, atol=1e-14)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert module.training
    assert module.drop.training
    assert module.norm.num_batches_tracked == 2
    # The gradient is that of the network in eval mode with these statistics.
    frozen = copy.deepcopy(module).eval()
    module.eval()
    statistics = {name: buffer.clone() for name, buffer in module.named_buffers()}
    loss = optimizer.backward(x, y)
    if kind is not VOGN:
        total = nn.functional.cross_entropy(frozen(x), y, reduction="sum")
        assert loss == pytest.approx(total.item() / 12, rel=1e-12)
        total.backward()
        for own, other in zip(module.parameters(), frozen.parameters(), strict=True):
            expected = (2 * other.grad + other.detach()) / 24
            torch.testing.assert_close(own.grad, expected, rtol=1e-10, atol=1e-12)
    assert all(torch.equal(statistics[name], buffer) for name, buffer in module.named_buffers())


def test_a_failed_step_leaves_no_trace_in_running_statistics():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double().train()
    x, y = torch.randn(6, 3).double(), torch.randn(6, 1).double()
    optimizer = OGN(module, GaussianLikelihood(1.0), 6)
    optimizer.step(x, y)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with pytest.raises(DivergedError):
        optimizer.step(x, y + 1e200)
    optimizer.backward(x, y)
    optimizer.zero_grad()
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())
    optimizer.step(x, y)
    assert module[1].num_batches_tracked == 2


def test_frozen_layers_stay_and_are_read_anew():
    optimizer, module, x, y = fresh(OGGN)
    frozen = copy.deepcopy(module)
    frozen[0].requires_grad_(False)
    optimizer = OGGN(frozen, CategoricalLikelihood(), 8, lr=0.05)
    optimizer.step(x, y)
    assert torch.equal(frozen[0].weight, module[0].weight)
    assert not torch.equal(frozen[2].weight, module[2].weight)
    with torch.no_grad():
        frozen[0].weight.mul_(2)
    loss = nn.functional.cross_entropy(frozen(x), y).item()
    assert optimizer.backward(x, y) == pytest.approx(loss, rel=1e-12)


def test_changes_of_the_network_between_steps():
    optimizer, module, x, y = fresh(OGN)
    optimizer.step(x, y)
    module[0].requires_grad_(False)
    with pytest.raises(InputError, match=r"0\.bias, 0\.weight .*frozen, unfrozen or replaced"):
        optimizer.step(x, y)
    module[0].requires_grad_(True)
    optimizer.step(x, y)
    module.float()
    with pytest.raises(InputError, match=r"torch\.float32 .*Call network\.to\(\) before"):
        optimizer.step(x.float(), y)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(optimizer)
    batch_norm, _, x, y = normalised_1d()
    with pytest.raises(InputError, match="drop_last"):
        batch_norm.step(x[:1], y[:1])


def test_gradients_that_were_changed_are_not_lost():
    optimizer, module, x, y = fresh(OGN)
    optimizer.backward(x[:4], y[:4])
    with pytest.raises(InputError, match="a step has begun"):
        optimizer.step(x[4:], y[4:])
    nn.utils.clip_grad_norm_(module.parameters(), 1e-3)
    with pytest.raises(InputError, match="Clip after the last batch"):
        optimizer.backward(x[4:], y[4:])
    optimizer.backward(x, y)
    module.zero_grad()
    with pytest.raises(InputError, match=r"optimizer\.zero_grad"):
        optimizer.step()
    optimizer.backward(x[:6], y[:6])
    with pytest.raises(InputError, match="a step sees 14"):
        optimizer.backward(x, y)


def test_an_interrupt_while_weights_are_written_leaves_the_old_ones(monkeypatch):
    optimizer, module, x, y = fresh(VOGN)
    optimizer.step(x, y)
    before, state = brute_force.flat_weights(module), optimizer.state_dict()
    count = 0

    class Interrupting(Layout):
        def unflatten(self, vector):
            nonlocal count
            count += 1
            if count == 2:  # the first one writes the gradients
                found = super().unflatten(vector)
                return dict(list(found.items())[:2]) | {"no such weight": vector}
            return super().unflatten(vector)

    layout = optimizer._trained.layout
    monkeypatch.setattr(optimizer._trained, "layout", Interrupting(layout.names, layout.shapes))
    with pytest.raises(KeyError):
        optimizer.step(x, y)
    assert torch.equal(brute_force.flat_weights(module), before)
    after = optimizer.state_dict()["online_newton"]
    assert all(
        torch.equal(torch.as_tensor(after[k]), torch.as_tensor(v))
        for k, v in state["online_newton"].items()
        if k != "method"
    )


def test_a_failed_step_leaves_no_trace():
    """The error names step and batch; weights, precision, generator are those before, and can be saved."""
    case = problem("gaussian", examples=8)
    optimizer, module, x, y = fresh(VOGN, case)
    other, twin, _, _ = fresh(VOGN, case)
    optimizer.step(x, y)
    other.step(x, y)
    bad = y.clone()
    bad[5] = 1e200
    with pytest.raises(DivergedError, match=r"Step 2, batch 1 of the step .*example 5"):
        optimizer.step(x, bad)
    optimizer.state_dict()
    optimizer.step(x, y)
    other.step(x, y)
    assert torch.equal(brute_force.flat_weights(module), brute_force.flat_weights(twin))


def test_zero_grad_forgets_a_step_that_has_begun():
    optimizer, module, x, y = fresh()
    other, twin, _, _ = fresh()
    optimizer.backward(x[:2], y[:2])
    optimizer.zero_grad()
    assert all(p.grad is None for p in module.parameters())
    optimizer.step(x, y)
    other.step(x, y)
    assert torch.equal(brute_force.flat_weights(module), brute_force.flat_weights(twin))
