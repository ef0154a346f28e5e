"""Adam and VOGN for many networks at once: equal to the optimizers that train one network, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dnn2gp import BernoulliLikelihood, GaussianLikelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.paper import batched_training
from dnn2gp.paper.batched_training import adam, vogn
from dnn2gp.paper.small_networks import VognSettings
from dnn2gp.support.errors import DivergedError, InputError
from dnn2gp.tune.ensemble import Ensemble, initial_weights
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.online_newton import OnlineNewton

SETTINGS = VognSettings(steps=6, lr=0.3, precision_lr=0.2, num_samples=3, initial_precision=5.0)
EPOCHS, RATE = 100, 0.3
SIGMA = 0.7


def problem(
    members: int = 3, examples: int = 7, inputs: int = 2, outputs: int = 1, depth: int = 1, sigma: float = SIGMA
) -> tuple[Ensemble, Tensor]:
    """Members with their own data and δ, and their initial weights."""
    generator = torch.Generator().manual_seed(5)
    x, y = (
        torch.randn(members, examples, size, generator=generator, dtype=torch.float64) for size in (inputs, outputs)
    )
    delta = torch.logspace(-1, 1, members, dtype=torch.float64)

    def build() -> nn.Module:
        return mlp(inputs, outputs, width=4, depth=depth).double()

    return Ensemble(build(), x, y, GaussianLikelihood(sigma), delta), initial_weights(build, list(range(members)))


def noise_of(seed: int, members: int, settings: VognSettings, size: int) -> list[Tensor]:
    """What each member draws, steps × S × P: from its own generator, seeded by the common one."""
    seeds = torch.randint(2**62, (members,), generator=torch.Generator().manual_seed(seed))
    found = []
    for own in seeds.tolist():
        generator = torch.Generator().manual_seed(own)
        draws = [
            torch.empty(settings.num_samples, size, dtype=torch.float64).normal_(generator=generator)
            for _ in range(settings.steps)
        ]
        found.append(torch.stack(draws))
    return found


def parts(q: Gaussian) -> tuple[Tensor, Tensor]:
    return q.mean, q.precision.diagonal()


SIZES = [(7, 2, 1, 1), (1, 1, 1, 1), (5, 3, 2, 2), (4, 2, 1, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(("examples", "inputs", "outputs", "depth"), SIZES)
def test_every_step_is_one_of_vogn(examples, inputs, outputs, depth, monkeypatch):
    """Mean and precision of each member after each of six steps are those of `VOGN` with the same noise."""
    ensemble, first = problem(3, examples, inputs, outputs, depth)
    noise = noise_of(11, 3, SETTINGS, first.shape[1])
    draws: list[Tensor] = []
    monkeypatch.setattr(
        OnlineNewton, "sample", lambda self, state, _: state.mean + draws.pop(0) * state.precision.diagonal().rsqrt()
    )
    batched = []
    for steps in range(1, SETTINGS.steps + 1):
        generator = torch.Generator().manual_seed(11)
        batched.append(vogn(ensemble, first, replace(SETTINGS, steps=steps), generator, dtype=torch.float64))
    network = ensemble.network
    for member in range(3):
        nn.utils.vector_to_parameters(first[member].clone(), network.parameters())
        delta = ensemble.prior_precision[member].item()
        optimizer = SETTINGS.optimizer(network, ensemble.likelihood, examples, delta)
        draws[:] = noise[member].unbind()
        for step in range(SETTINGS.steps):
            optimizer.step(ensemble.inputs[member], ensemble.targets[member])
            for found, expected in zip(parts(batched[step][member]), parts(optimizer.posterior()), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_batches_of_members_do_not_matter_and_seeds_do(monkeypatch):
    ensemble, first = problem(5)

    def run(seed: int, **more: torch.dtype) -> Tensor:
        return torch.stack(
            [q.mean for q in vogn(ensemble, first, SETTINGS, torch.Generator().manual_seed(seed), **more)]
        )

    whole, again, other = run(0), run(0), run(1)
    assert torch.equal(whole, again)
    assert not torch.allclose(whole, other)
    assert whole.dtype == torch.float64
    wide = run(0, dtype=torch.float64)
    few = ensemble.take(torch.tensor([0, 2]))
    generator = torch.Generator().manual_seed(0)
    torch.testing.assert_close(vogn(few, first[[0, 2]], SETTINGS, generator)[0].mean, whole[0])
    monkeypatch.setattr(batched_training, "_UNITS", 1)
    torch.testing.assert_close(run(0, dtype=torch.float64), wide, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("train", ["adam", "vogn"])
def test_nothing_else_is_changed(train):
    ensemble, first = problem()
    before, start = torch.get_rng_state(), first.clone()
    kept = [weight.detach().clone() for weight in ensemble.network.parameters()]
    if train == "adam":
        adam(ensemble, first, lr=0.1, epochs=3)
    else:
        vogn(ensemble, first, SETTINGS, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, start)
    for weight, was in zip(ensemble.network.parameters(), kept, strict=True):
        assert torch.equal(weight, was)
        assert weight.grad is None


def by_torch(ensemble: Ensemble, first: Tensor, member: int) -> Tensor:
    """One member by torch.optim.Adam and its scheduler."""
    network = ensemble.network
    nn.utils.vector_to_parameters(first[member].clone(), network.parameters())
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        penalty = sum(weight.square().sum() for weight in network.parameters())
        fit = 0.5 * (network(ensemble.inputs[member]) - ensemble.targets[member]).square().sum() / SIGMA**2
        loss = fit + 0.5 * ensemble.prior_precision[member, 0] * penalty
        loss.backward()
        optimizer.step()
        plateau.step(loss.item())
    assert optimizer.param_groups[0]["lr"] < RATE  # the schedule was at work
    return nn.utils.parameters_to_vector(network.parameters()).detach()


@pytest.mark.parametrize(("depth", "units"), [(1, 2**19), (2, 1)])
def test_adam_is_that_of_torch(depth, units, monkeypatch):
    """Whatever the number of members that are trained at a time."""
    monkeypatch.setattr(batched_training, "_UNITS", units)
    ensemble, first = problem(depth=depth)
    found = adam(ensemble, first, lr=RATE, epochs=EPOCHS, factor=0.5, patience=3, dtype=torch.float64)
    for member in range(3):
        torch.testing.assert_close(found[member], by_torch(ensemble, first, member), rtol=1e-8, atol=1e-8)


def test_adam_in_float32_is_close_and_returns_float64():
    ensemble, first = problem(depth=2)
    narrow, wide = (adam(ensemble, first, lr=0.05, epochs=20, dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert narrow.dtype == torch.float64
    assert not torch.equal(narrow, wide)
    torch.testing.assert_close(narrow, wide, rtol=1e-3, atol=1e-4)


def test_what_cannot_be_trained_is_refused():
    ensemble, first = problem()
    other = Ensemble(ensemble.network, ensemble.inputs, ensemble.targets, BernoulliLikelihood(), torch.ones(3))
    with pytest.raises(InputError, match="ensemble"):
        adam(other, first, lr=0.05, epochs=20)
    with pytest.raises(InputError, match="weights"):
        vogn(ensemble, torch.full_like(first, torch.nan), SETTINGS, torch.Generator())
    relu = mlp(2, 1, width=4, activation="relu").double()
    other = Ensemble(relu, ensemble.inputs, ensemble.targets, GaussianLikelihood(1.0), torch.ones(3))
    with pytest.raises(InputError, match="network"):
        vogn(other, first, SETTINGS, torch.Generator())
    with pytest.raises(InputError, match="steps"):
        VognSettings(steps=0)
    with pytest.raises(InputError, match="lr"):
        VognSettings(lr=2.0)


def test_a_training_that_diverges_says_so():
    ensemble, first = problem()
    far = Ensemble(ensemble.network, ensemble.inputs, 1e30 * ensemble.targets, ensemble.likelihood, torch.ones(3))
    settings = VognSettings(steps=200, lr=1.0, precision_lr=1.0, num_samples=1, initial_precision=1.0)
    with pytest.raises(DivergedError, match="NaN or infinite after"):
        vogn(far, first, settings, torch.Generator().manual_seed(0))
