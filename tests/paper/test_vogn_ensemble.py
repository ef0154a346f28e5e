"""VOGN for many networks at once: against gradients of single examples by autograd, written here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dnn2gp import VOGN, GaussianLikelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.paper.vogn_ensemble import MeanField, VognSettings, elbo, vogn
from dnn2gp.support.errors import DivergedError, InputError
from dnn2gp.weights.online_newton import OnlineNewton

SETTINGS = VognSettings(steps=6, lr=0.3, precision_lr=0.2, num_samples=3, initial_precision=5.0)


def problem(
    members: int = 3, examples: int = 7, inputs: int = 2, outputs: int = 1, depth: int = 1, activation: str = "tanh"
):
    """A network, data, δ and first weights of each member."""
    generator = torch.Generator().manual_seed(5)
    network = mlp(inputs, outputs, width=4, depth=depth, activation=activation).double()
    size = sum(weight.numel() for weight in network.parameters())
    x, y, first = (
        torch.randn(members, *shape, generator=generator, dtype=torch.float64)
        for shape in ((examples, inputs), (examples, outputs), (size,))
    )
    delta = torch.logspace(-1, 1, members, dtype=torch.float64)
    return network, x, y, delta, 0.5 * first


def noise_of(seed: int, members: int, settings: VognSettings, size: int) -> list[Tensor]:
    """What each member draws, steps × S × P: by a generator of its own, which the generator of all has seeded."""
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


def by_hand(network, x, y, delta, mean, sigma, settings, noise) -> tuple[Tensor, Tensor]:
    """One member: the loss of every example, and for Gauss-Newton its output, differentiated by itself."""
    precision = torch.full_like(mean, settings.initial_precision)
    for step in range(settings.steps):
        gradient, squares = torch.zeros_like(mean), torch.zeros_like(mean)
        for epsilon in noise[step]:
            nn.utils.vector_to_parameters(mean + epsilon / precision.sqrt(), network.parameters())
            for example, target in zip(x, y, strict=True):
                loss = 0.5 * ((target - network(example)) ** 2).sum() / sigma**2
                own = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])
                gradient += own / settings.num_samples
                if settings.gauss_newton:
                    own = torch.autograd.grad(network(example).sum() / sigma, list(network.parameters()))
                    own = torch.cat([g.flatten() for g in own])
                squares += own**2 / settings.num_samples
        precision = (1 - settings.precision_lr) * precision + settings.precision_lr * (squares + delta)
        mean = mean - settings.lr * (gradient + delta * mean) / precision
    return mean, precision


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize(
    ("examples", "inputs", "outputs", "depth"), [(7, 2, 1, 1), (1, 1, 1, 1), (5, 3, 2, 2), (4, 2, 1, 0)]
)
def test_steps_are_those_of_gradients_example_by_example(steps, examples, inputs, outputs, depth):
    network, x, y, delta, first = problem(3, examples, inputs, outputs, depth)
    settings = VognSettings(steps=steps, lr=0.3, precision_lr=0.2, num_samples=3, initial_precision=5.0)
    generator = torch.Generator().manual_seed(11)
    q = vogn(network, x, y, delta, first, settings, generator, sigma=0.7, dtype=torch.float64)
    noise = noise_of(11, 3, settings, first.shape[1])
    for member in range(3):
        own = (x[member], y[member], delta[member], first[member])
        mean, precision = by_hand(network, *own, 0.7, settings, noise[member])
        torch.testing.assert_close(q.mean[member], mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(q.precision[member], precision, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("gauss_newton", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize("depth", [1, 2])
def test_units_and_curvatures(gauss_newton, activation, depth):
    network, x, y, delta, first = problem(2, depth=depth, activation=activation)
    settings = replace(SETTINGS, gauss_newton=gauss_newton)
    generator = torch.Generator().manual_seed(1)
    q = vogn(network, x, y, delta, first, settings, generator, sigma=0.7, dtype=torch.float64)
    noise = noise_of(1, 2, settings, first.shape[1])
    for member in range(2):
        own = (x[member], y[member], delta[member], first[member])
        mean, precision = by_hand(network, *own, 0.7, settings, noise[member])
        torch.testing.assert_close(q.mean[member], mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(q.precision[member], precision, rtol=1e-10, atol=1e-10)


def test_gauss_newton_is_for_one_output():
    network, *parts = problem(2, outputs=2)
    with pytest.raises(InputError, match="one output"):
        vogn(network, *parts, replace(SETTINGS, gauss_newton=True), torch.Generator())


def test_a_step_of_the_optimizer_is_the_same(monkeypatch):
    """`VOGN` with the same noise."""
    network, x, y, delta, first = problem(1)
    settings = VognSettings(steps=3, lr=0.3, precision_lr=0.2, num_samples=3, initial_precision=5.0)
    q = vogn(network, x, y, delta, first, settings, torch.Generator().manual_seed(2), dtype=torch.float64)
    (noise,) = noise_of(2, 1, settings, first.shape[1])
    nn.utils.vector_to_parameters(first[0], network.parameters())
    optimizer = VOGN(
        network,
        GaussianLikelihood(1.0),
        x.shape[1],
        lr=0.3,
        precision_lr=0.2,
        prior_precision=delta.item(),
        initial_precision=5.0,
        num_samples=3,
    )
    draws = iter(noise)

    def sample(self, state, generator=None):
        return state.mean + next(draws) * state.precision.values.rsqrt()

    monkeypatch.setattr(OnlineNewton, "sample", sample)
    for _ in range(3):
        optimizer.step(x[0], y[0])
    torch.testing.assert_close(nn.utils.parameters_to_vector(network.parameters()).detach(), q.mean[0])
    torch.testing.assert_close(optimizer.posterior().precision.values, q.precision[0])


def test_chunks_do_not_matter_and_seeds_do():
    network, x, y, delta, first = problem(5)

    def run(seed: int, **more: object) -> MeanField:
        return vogn(network, x, y, delta, first, SETTINGS, torch.Generator().manual_seed(seed), **more)

    whole, again, other = run(0), run(0), run(1)
    assert torch.equal(whole.mean, again.mean)
    assert torch.equal(whole.precision, again.precision)
    assert not torch.allclose(whole.mean, other.mean)
    assert whole.mean.dtype == torch.float64
    for budget in (1, 5000):
        parts = run(0, dtype=torch.float64, memory_budget=budget)
        torch.testing.assert_close(parts.mean, run(0, dtype=torch.float64).mean, rtol=1e-12, atol=1e-12)
    draws = first.new_tensor([0, 2]).long()
    few = vogn(network, x[draws], y[draws], delta[draws], first[draws], SETTINGS, torch.Generator().manual_seed(0))
    torch.testing.assert_close(few.mean[0], whole.mean[0])  # the first member draws the same in any company


def test_global_state_is_left_alone():
    network, x, y, delta, first = problem()
    before = torch.get_rng_state()
    kept = [weight.detach().clone() for weight in network.parameters()]
    start = first.clone()
    vogn(network, x, y, delta, first, SETTINGS, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, start)
    for weight, was in zip(network.parameters(), kept, strict=True):
        assert torch.equal(weight, was)
        assert weight.grad is None


@pytest.mark.parametrize("name", ["inputs", "targets", "prior_precision", "weights"])
def test_what_is_no_number_is_refused(name):
    network, *parts = problem()
    tensors = dict(zip(("inputs", "targets", "prior_precision", "weights"), parts, strict=True))
    tensors[name].view(-1)[1] = torch.nan
    with pytest.raises(InputError, match=f"{name}: expected numbers"):
        vogn(network, **tensors, settings=SETTINGS, generator=torch.Generator())


def test_what_cannot_be_used_is_refused():
    network, x, y, delta, first = problem()
    generator = torch.Generator()
    with pytest.raises(InputError, match="prior_precision: expected numbers > 0"):
        vogn(network, x, y, -delta, first, SETTINGS, generator)
    with pytest.raises(InputError, match="targets: expected"):
        vogn(network, x, y.repeat(1, 1, 2), delta, first, SETTINGS, generator)
    with pytest.raises(InputError, match="between them, as mlp"):
        vogn(mlp(2, 1, width=4, activation="relu").double(), x, y, delta, first, SETTINGS, generator)
    with pytest.raises(InputError, match="steps"):
        VognSettings(steps=0)
    with pytest.raises(InputError, match="lr"):
        VognSettings(lr=2.0)


def test_a_training_that_diverges_says_so():
    network, x, y, delta, first = problem()
    settings = VognSettings(steps=200, lr=1.0, precision_lr=1.0, num_samples=1, initial_precision=1.0)
    with pytest.raises(DivergedError, match="members are NaN or infinite after"):
        vogn(network, x, 1e30 * y, delta, first, settings, torch.Generator().manual_seed(0))


def test_samples_divergence_and_elbo():
    """KL and the ELBO of one member by torch.distributions."""
    _, _, y, delta, first = problem(2)
    q = MeanField(first, 1 + first.square())
    samples = q.sample(20_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(samples.mean(1), q.mean, rtol=0.0, atol=0.03)
    torch.testing.assert_close(samples.var(1), 1 / q.precision, rtol=0.05, atol=0.0)
    normal = torch.distributions.Normal
    for member in range(2):
        own = normal(q.mean[member], q.precision[member].rsqrt())
        prior = normal(torch.zeros_like(own.mean), delta[member].rsqrt())
        kl = torch.distributions.kl_divergence(own, prior).sum()
        torch.testing.assert_close(q.divergence(delta)[member], kl)
        f = torch.randn(4, 2, *y.shape[1:], dtype=torch.float64)
        expected = normal(f[:, member], 0.7).log_prob(y[member]).sum((1, 2)).mean()
        torch.testing.assert_close(elbo(q, f, y, delta, 0.7)[member], expected - kl)
