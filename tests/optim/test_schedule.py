"""The schedules: their values by hand, steps that follow them, and training with nothing but the number of steps."""

from __future__ import annotations

import copy
import warnings
from math import cos, pi, prod

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from dnn2gp import OGGN, OGN, VOGGN, VOGN, CategoricalLikelihood, GaussianLikelihood
from dnn2gp.optim import Cosine, OpenEnded, Recorder, load_checkpoint, save_checkpoint
from dnn2gp.support.errors import InputError, ScheduleWarning

from problems import problem
from reference import brute_force


def small(kind=VOGN, **settings):
    case = problem("categorical", examples=8, outputs=3)
    module = copy.deepcopy(case.module)
    return kind(module, case.likelihood, len(case.x), **settings), module, case.x, case.y


def test_cosine_by_hand():
    """100 steps on 0.04 % of the data each: after a warm-up of 5 steps, β decays from 1.5 √0.0004 to 1 % of it."""
    schedule = Cosine(100)
    found = [schedule.mean_rate(t, 0.0004, 1.0) for t in range(102)]
    assert found[0] == pytest.approx(0.03 / 5, rel=1e-12)
    assert found[2] == pytest.approx(0.03 * 3 / 5 * (0.01 + 0.495 * (1 + cos(pi / 50))), rel=1e-12)
    assert found[50] == pytest.approx(0.03 * 0.505, rel=1e-12)
    assert found[99] == pytest.approx(0.03 * (0.01 + 0.495 * (1 + cos(0.99 * pi))), rel=1e-12)
    assert found[100] == found[101] == found[99]
    assert max(found) == found[4]
    assert schedule.mean_rate(50, 0.64, 1.0) == pytest.approx(0.505, rel=1e-12)  # at most the peak
    assert Cosine(100, scale=0.5).mean_rate(50, 0.64, 0.1) == pytest.approx(0.5 * 0.1 * 0.505, rel=1e-12)
    plain = Cosine(100, warm_up=0.0, final=1.0)
    assert {plain.mean_rate(t, 0.25, 1.0) for t in range(120)} == {0.75}


def test_open_ended_by_hand():
    schedule = OpenEnded()
    first, later = schedule.mean_rate(0, 0.01, 1.0), schedule.mean_rate(900, 0.01, 1.0)
    assert first == pytest.approx(0.15 / 10, rel=1e-12)
    assert later == pytest.approx(0.15 / (1 + 3), rel=1e-12)
    assert OpenEnded(scale=0.5).mean_rate(60, 1.0, 0.1) == pytest.approx(0.5 * 0.1 / (1 + 3), rel=1e-12)
    left = prod(1 - schedule.precision_rate(t, 0.01) for t in range(90))
    assert left == pytest.approx(10 / (90 + 10), rel=1e-12)
    assert schedule.precision_rate(0, 1.0) == pytest.approx(1 / 4, rel=1e-12)


@pytest.mark.parametrize(("schedule", "first", "steps"), [(Cosine(1000), 100, 1000), (Cosine(10), 3, 10)])
def test_the_first_precision_is_forgotten_within_the_steps(schedule, first, steps):
    """Π (1 − β'_t) = t₀ (t₀ + 1) / ((n + t₀) (n + t₀ + 1)), which telescopes."""
    left = prod(1 - schedule.precision_rate(t, 0.01) for t in range(steps))
    assert left == pytest.approx(first * (first + 1) / ((steps + first) * (steps + first + 1)), rel=1e-12)
    assert left < 0.08


@pytest.mark.parametrize("steps", [20, None])
def test_steps_follow_the_schedule(steps):
    """Two steps of OGN on a quarter of the data, with the gradients of single examples by brute force."""
    optimizer, module, x, y = small(OGN, steps=steps, temperature=0.5)
    schedule = OpenEnded() if steps is None else Cosine(steps)
    mean, precision, momentum, weight = brute_force.flat_weights(module), torch.tensor(8 / 0.5).double(), 0.0, 0.0
    twin = copy.deepcopy(module)
    for t in range(2):
        beta, precision_beta = schedule.mean_rate(t, 0.25, 1.0), schedule.precision_rate(t, 0.25)
        network = brute_force.with_weights(twin, mean)
        rows = []
        for i in range(2):
            network.zero_grad()
            cross_entropy(network(x[i : i + 1]), y[i : i + 1]).backward()
            rows.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
        rows = torch.stack(rows)
        scale = 8 / (2 * 0.5)
        gradient, curvature = scale * rows.sum(0) + mean, scale * rows.square().sum(0) + 1
        precision = (1 - precision_beta) * precision + precision_beta * curvature
        momentum, weight = 0.9 * momentum + 0.1 * gradient, 0.9 * weight + 0.1
        mean = (mean - beta * momentum / weight / precision).detach()
        info = optimizer.step(x[:2], y[:2])
        assert info.beta == optimizer.param_groups[0]["lr"] == beta
    torch.testing.assert_close(optimizer.posterior().precision.diagonal(), precision, rtol=1e-10, atol=0)
    torch.testing.assert_close(brute_force.flat_weights(module), mean, rtol=1e-10, atol=1e-12)


def test_explicit_arguments_come_first():
    optimizer, _, x, y = small(VOGN, steps=10, precision_lr=0.25, momentum=0.5, initial_precision=40.0)
    assert optimizer.param_groups[0]["momentum"] == 0.5
    info = optimizer.step(x, y)
    expected = 0.75 * 40 + 0.25 * (info.evaluation.curvature + 1)
    torch.testing.assert_close(optimizer.posterior().precision.diagonal(), expected, rtol=1e-12, atol=0)
    dense, _, x, y = small(OGGN, schedule=Cosine(10, warm_up=0.0))
    assert dense.step(x, y).beta == pytest.approx(0.1, rel=1e-12)
    paper, _, x, y = small(VOGN, lr=0.25)
    assert paper.step(x, y).beta == 0.25
    assert (paper.schedule, paper.param_groups[0]["momentum"]) == (None, 0.0)


def test_more_steps_than_planned():
    """A warning, once; training goes on with the last rate."""
    optimizer, _, x, y = small(steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rates = [optimizer.step(x, y).beta for _ in range(3)]
    with pytest.warns(ScheduleWarning, match="steps"):
        rates.append(optimizer.step(x, y).beta)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rates.append(optimizer.step(x, y).beta)
    assert rates[2] == rates[3] == rates[4] > 0


def test_a_scheduler_of_torch_needs_lr():
    optimizer, module, x, y = small(steps=10)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.step(x, y)
    schedule.step()
    before = brute_force.flat_weights(module)
    with pytest.raises(InputError, match="lr"):
        optimizer.step(x, y)
    assert torch.equal(brute_force.flat_weights(module), before)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"lr": 0.1, "steps": 10}, "lr and steps"),
        ({"steps": 10, "schedule": OpenEnded()}, "steps and schedule"),
        ({"steps": 0}, "steps"),
        ({"schedule": OpenEnded(scale=30.0)}, "scale"),
    ],
)
def test_bad_settings(settings, name):
    with pytest.raises(InputError, match=name):
        small(**settings)


@pytest.mark.parametrize("name", ["scale", "warm_up", "final", "hold"])
def test_bad_schedules(name):
    with pytest.raises(InputError, match=name):
        Cosine(10, **{name: -1.0})


def test_a_resumed_schedule_ends_at_the_same_bits(tmp_path):
    optimizer, module, x, y = small(steps=6)
    for step in range(6):
        if step == 3:
            tree = {"network": dict(module.state_dict()), "optimizer": optimizer.state_dict()}
            save_checkpoint(tmp_path / "run.safetensors", tree)
        optimizer.step(x, y)
    again, twin, _, _ = small(steps=6, seed=9)
    tree = load_checkpoint(tmp_path / "run.safetensors")
    twin.load_state_dict(tree["network"])
    again.load_state_dict(tree["optimizer"])
    for _ in range(3):
        again.step(x, y)
    assert torch.equal(brute_force.flat_weights(twin), brute_force.flat_weights(module))
    assert torch.equal(again.posterior().precision.diagonal(), optimizer.posterior().precision.diagonal())


def test_recorded_gps_have_the_rate_of_their_step():
    optimizer, _, x, y = small(steps=4, prior_precision=2.0)
    recorder = Recorder((x, y), steps=[2])
    optimizer.register_step_post_hook(recorder)
    rates = [optimizer.step(x, y).beta for _ in range(2)]
    own = recorder.records[0]
    expected = (1 - rates[1]) * own.state.precision.diagonal() + rates[1] * 2.0
    torch.testing.assert_close(own.gp.prior.precision.diagonal(), expected, rtol=1e-12, atol=0)


def digits():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = torch.from_numpy(images[order] / 16).float(), torch.from_numpy(labels[order])
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def trained_accuracy(step_of, seed: int) -> float:
    """Test accuracy after 3 epochs of batches of 32, which is 135 steps."""
    (x, y), (x_test, y_test) = digits()
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    step = step_of(network, len(y))
    for _ in range(3):
        for part in torch.randperm(len(y)).split(32):
            step(x[part], y[part])
    return (network(x_test).argmax(1) == y_test).double().mean().item()


def adam(rate: float):
    def step_of(network, num_data):
        optimizer = torch.optim.Adam(network.parameters(), lr=rate)

        def step(x, y):
            optimizer.zero_grad()
            cross_entropy(network(x), y).backward()
            optimizer.step()

        return step

    return step_of


def vogn(**settings):
    return lambda network, num_data: VOGN(network, CategoricalLikelihood(), num_data, **settings).step


def test_default_settings_learn_digits_as_fast_as_adam():
    """The mean accuracy of two seeds, compared with Adam at the best of three learning rates.

    Without the number of steps, VOGN is slower, but learns too; with β = β' = 0.1 it does not.
    """

    def mean(step_of) -> float:
        return float(np.mean([trained_accuracy(step_of, seed) for seed in range(2)]))

    best = max(mean(adam(rate)) for rate in (3e-4, 1e-3, 3e-3))
    assert mean(vogn(steps=135)) > best
    assert mean(vogn()) >= best - 0.05
    assert mean(vogn(lr=0.1)) < best - 0.2


@pytest.mark.parametrize("kind", [VOGN, OGN, VOGGN, OGGN])
def test_default_settings_fit_a_curve(kind):
    """sin 1.5x in float32, to less than the noise of the data, in 200 steps; the first error is about 0.7."""
    noise = 0.15
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    x = torch.linspace(-3, 3, 40)[:, None]
    y = torch.sin(1.5 * x) + noise * torch.randn(40, 1)
    optimizer = kind(network, GaussianLikelihood(noise), 40, steps=200)
    for _ in range(200):
        optimizer.step(x, y)
    assert (network(x) - torch.sin(1.5 * x)).square().mean().sqrt() < noise
