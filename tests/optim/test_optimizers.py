"""The optimizers: a torch.optim.Optimizer in every way, and q_t besides."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from math import log

import pytest
import torch
from optimizing import fresh, normalised
from torch import nn

from dnn2gp import OGGN, OGN, ON, VOGGN, VOGN, VON, CategoricalLikelihood, GaussianLikelihood
from dnn2gp.network.data import Data
from dnn2gp.optim import load_checkpoint, save_checkpoint
from dnn2gp.support.errors import FileFormatError, InputError, MemoryBudgetError
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.structures import Dense, Diagonal

from problems import problem
from reference import brute_force

ROWS = {
    VON: ("exact Hessian", Dense(), False),
    ON: ("exact Hessian", Dense(), True),
    VOGGN: ("Gauss-Newton", Dense(), False),
    OGGN: ("Gauss-Newton", Dense(), True),
    VOGN: ("empirical Fisher", Diagonal(), False),
    OGN: ("empirical Fisher", Diagonal(), True),
}


@pytest.mark.parametrize("kind", ROWS)
def test_every_row_is_its_method(kind):
    """A step of the optimizer is a step of the pure function, and the network gets the mean."""
    optimizer, module, x, y = fresh(kind)
    curvature, structure, at_mean = ROWS[kind]
    state = optimizer.snapshot()
    generator = torch.Generator()
    generator.set_state(optimizer.generator.get_state())
    info = optimizer.step(x, y)
    after, expected = info.method.update(state, Data(x, y), 0.05, generator=generator)
    assert (info.method.curvature.name, info.method.structure) == (curvature, structure)
    assert torch.equal(info.samples, state.mean.unsqueeze(0)) is at_mean
    assert torch.equal(info.samples, expected.samples)
    assert torch.equal(brute_force.flat_weights(module), after.mean)
    assert torch.equal(optimizer.posterior().precision.dense(), after.precision.dense())


def test_grad_is_that_of_the_mean_loss():
    """weight.grad = ∇ (1/N) [Σ ℓᵢ + ½ T δ wᵀw], as after backward() of the mean loss with weight decay T δ / N."""
    case = problem("categorical", examples=8, outputs=3)
    optimizer, module, x, y = fresh(OGN, case, temperature=0.25)
    loss = optimizer.backward(x, y)
    tempered = replace(case, delta=0.25 * case.delta)
    expected = torch.func.grad(tempered.total_loss)(case.weights) / len(x)
    found = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert loss == pytest.approx(nn.functional.cross_entropy(module(x), y).item(), rel=1e-12)


def test_clipping_the_gradient_clips_the_step():
    optimizer, module, x, y = fresh(OGN)
    other, twin, _, _ = fresh(OGN)
    before = brute_force.flat_weights(module)
    optimizer.backward(x, y)
    norm = nn.utils.clip_grad_norm_(module.parameters(), 1e-3).item()
    optimizer.step()
    other.step(x, y)
    moved, whole = brute_force.flat_weights(module) - before, brute_force.flat_weights(twin) - before
    assert norm > 2e-3
    torch.testing.assert_close(moved, whole * 1e-3 / norm, rtol=1e-5, atol=1e-12)


def test_batches_add_up_until_the_step():
    optimizer, module, x, y = fresh(VOGN)
    other, twin, _, _ = fresh(VOGN)
    optimizer.backward(x[:3], y[:3])
    optimizer.backward(x[3:], y[3:])
    info = optimizer.step()
    other.step(x, y)
    assert len(info.batches) == 2
    torch.testing.assert_close(brute_force.flat_weights(module), brute_force.flat_weights(twin), rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROWS)
def test_a_resumed_training_ends_at_the_same_bits(kind, tmp_path):
    settings = {"momentum": 0.5, "precision_lr": 0.01, **({} if ROWS[kind][2] else {"num_samples": 2})}
    optimizer, module, x, y = fresh(kind, **settings)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(6):
        if step == 3:
            tree = {
                "network": dict(module.state_dict()),
                "optimizer": optimizer.state_dict(),
                "at": schedule.state_dict(),
            }
            save_checkpoint(tmp_path / "run.safetensors", tree)
            buffer = io.BytesIO()
            torch.save(optimizer.state_dict(), buffer)
        optimizer.step(x[step % 2 :], y[step % 2 :])
        schedule.step()

    again, twin, _, _ = fresh(kind, **{**settings, "seed": 99, "lr": 0.9})
    later = torch.optim.lr_scheduler.StepLR(again, 2, 0.5)
    tree = load_checkpoint(tmp_path / "run.safetensors")
    twin.load_state_dict(tree["network"])
    again.load_state_dict(tree["optimizer"])
    later.load_state_dict(tree["at"])
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True).keys() == tree["optimizer"].keys()
    for step in range(3, 6):
        again.step(x[step % 2 :], y[step % 2 :])
        later.step()
    assert torch.equal(brute_force.flat_weights(twin), brute_force.flat_weights(module))
    assert torch.equal(again.posterior().precision.dense(), optimizer.posterior().precision.dense())
    assert torch.equal(again.generator.get_state(), optimizer.generator.get_state())


def test_a_schedule_that_begins_or_ends_at_zero():
    optimizer, module, x, y = fresh()
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = brute_force.flat_weights(module)
    precision = optimizer.posterior().precision.diagonal()
    assert optimizer.step(x, y).beta == 0
    assert torch.equal(optimizer.posterior().precision.diagonal(), precision)
    assert torch.equal(brute_force.flat_weights(module), before)
    assert optimizer.snapshot().step == 1
    gp = optimizer.gaussian_process((x, y))  # with the rate that the schedule starts from
    expected = 0.95 * 50.0 + 0.05 * optimizer.prior_precision
    torch.testing.assert_close(gp.prior.precision.diagonal(), expected, rtol=1e-12, atol=0)


def test_kl_and_elbo():
    """Closed forms for a linear model with Gaussian noise."""
    torch.manual_seed(0)
    module = nn.Linear(3, 1).double()
    x, y = torch.randn(10, 3).double(), torch.randn(10, 1).double()
    optimizer = VOGGN(module, GaussianLikelihood(0.5), 10, lr=0.5, prior_precision=0.7, temperature=2.0)
    optimizer.step(x, y)
    q, P = optimizer.posterior(), 4
    S, mu = torch.linalg.inv(q.precision.dense()), q.mean
    kl = 0.5 * (0.7 * (S.trace() + mu @ mu) - P - P * log(0.7) - torch.logdet(S))
    assert optimizer.kl() == pytest.approx(kl.item(), rel=1e-12)
    J = torch.cat([x, torch.ones(10, 1)], 1).double()
    noise = torch.randn(P, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = mu[:, None] + torch.linalg.solve_triangular(
        torch.linalg.cholesky(q.precision.dense()).T, noise, upper=True
    )
    log_prob = torch.distributions.Normal(J @ weights, 0.5).log_prob(y).sum(0)
    found = optimizer.elbo((x, y), 50, torch.Generator().manual_seed(0))
    assert found == pytest.approx(log_prob.mean().item() / 2 - kl.item(), rel=1e-12)


def test_the_elbo_of_the_exact_posterior_is_the_evidence():
    """A linear model with Gaussian noise: at the exact posterior the bound is tight."""
    torch.manual_seed(0)
    module = nn.Linear(2, 1).double()
    x, y = torch.randn(8, 2).double(), torch.randn(8, 1).double()
    optimizer = VOGGN(module, GaussianLikelihood(0.5), 8, lr=1.0, prior_precision=0.7, num_samples=2, antithetic=True)
    optimizer.step(x, y)
    J = torch.cat([x, torch.ones(8, 1)], 1).double()
    covariance = J @ J.T / 0.7 + 0.25 * torch.eye(8).double()
    evidence = torch.distributions.MultivariateNormal(torch.zeros(8).double(), covariance).log_prob(y.flatten())
    found = optimizer.elbo((x, y), 1000, torch.Generator().manual_seed(0))
    assert found == pytest.approx(evidence.item(), abs=0.2)  # the log-likelihoods of samples differ by about 1.2


@pytest.mark.slow
def test_training_lowers_the_loss_of_a_real_network():
    module, x, _ = normalised()
    y = x.mean((1, 2)).argsort().argsort() // 4
    optimizer = VOGN(
        module, CategoricalLikelihood(), 1200, lr=0.1, precision_lr=0.01, momentum=0.9, initial_precision=120.0
    )
    first = nn.functional.cross_entropy(module.eval()(x), y)
    for _ in range(80):
        optimizer.step(x, y)
    assert nn.functional.cross_entropy(module(x), y) < 0.5 * first


@pytest.mark.parametrize("kind", [VOGN, OGGN])
def test_one_cycle_moves_momentum_too(kind):
    optimizer, module, x, y = fresh(kind, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6)
    seen = set()
    for _ in range(5):
        optimizer.step(x, y)
        schedule.step()
        seen.add(optimizer.param_groups[0]["momentum"])
    assert len(seen) > 2
    assert brute_force.flat_weights(module).isfinite().all()


def test_sampled_networks():
    """DNN-VI: networks w ~ q_t, each by functional_call."""
    case = problem("categorical", examples=8, outputs=3)
    optimizer, module, x, y = fresh(VOGN, case)
    optimizer.step(x, y)
    found = optimizer.sample_network(case.x_test, 5, torch.Generator().manual_seed(0))
    weights = optimizer.posterior().sample(5, torch.Generator().manual_seed(0))
    outputs = torch.stack([brute_force.outputs(brute_force.with_weights(module, w), case.x_test) for w in weights])
    probabilities = outputs.softmax(-1)
    torch.testing.assert_close(found.mean, probabilities.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(found.epistemic, probabilities.var(0, correction=0), rtol=1e-9, atol=1e-14)
    before_any_step, _, _, _ = fresh(VOGN, case)
    assert before_any_step.sample_network(case.x_test).mean.shape == (4, 3)
    with pytest.raises(InputError, match="num_samples"):
        optimizer.sample_network(case.x_test, 0)


@pytest.mark.parametrize("kind", [VOGN, VOGGN])
def test_the_linearised_network_under_q(kind):
    """f ~ N(f_μ(x), J Σ Jᵀ) and the kernel J Σ J'ᵀ, with Jacobians by brute force."""
    case = problem("categorical", examples=8, outputs=3)
    optimizer, module, x, y = fresh(kind, case)
    optimizer.step(x, y)
    J = brute_force.jacobian(module, case.x_test)
    covariance = torch.linalg.inv(optimizer.posterior().precision.dense())
    found = optimizer.predict(case.x_test)
    latent = torch.einsum("nkp,pq,nlq->nkl", J, covariance, J)
    torch.testing.assert_close(found.latent_covariance, latent, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.latent_mean, brute_force.outputs(module, case.x_test), rtol=1e-12, atol=1e-13)
    trace = torch.einsum("nkp,pq,mkq->nm", J, covariance, J)
    kernel = optimizer.kernel(x)
    torch.testing.assert_close(kernel.trace(case.x_test), trace, rtol=1e-9, atol=1e-12)
    before = kernel.trace(case.x_test)
    optimizer.step(x, y)
    assert torch.equal(kernel.trace(case.x_test), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "lr: expected a learning rate"),
        ({"lr": 1.5}, "lr: expected a learning rate"),
        ({"precision_lr": -0.1}, "precision_lr: expected a learning rate"),
        ({"initial_precision": -1.0}, "initial_precision: expected a finite number > 0"),
        ({"prior_precision": -1.0}, "prior_precision"),
        ({"num_samples": 0}, "num_samples"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        fresh(VOGN, **settings)


def test_bad_arguments():
    case = problem("categorical", examples=8, outputs=3)
    with pytest.raises(InputError, match="num_samples"):
        fresh(OGN, num_samples=2)
    with pytest.raises(InputError, match="likelihood"):
        VOGN(case.module, GaussianLikelihood(torch.ones(8, 1)), 8)
    with pytest.raises(InputError, match="num_data"):
        VOGN(case.module, case.likelihood, 0)
    with pytest.raises(InputError, match="none requires a gradient"):
        VOGN(copy.deepcopy(case.module).requires_grad_(False), case.likelihood, 8)
    with pytest.raises(MemoryBudgetError, match=r"dense precision of 17 weights needs .* use VOGN or OGN"):
        OGGN(problem("gaussian").module, GaussianLikelihood(1.0), 8, memory_budget=10_000)
    optimizer, _, x, y = fresh()
    with pytest.raises(InputError, match="targets are missing"):
        optimizer.step(x)
    with pytest.raises(InputError, match=r"backward\(inputs, targets\) before step"):
        optimizer.step()
    with pytest.raises(InputError, match="a step sees 16"):
        optimizer.step(torch.cat([x, x]), torch.cat([y, y]))
    with pytest.raises(InputError, match="param_group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(FileFormatError, match="state_dict"):
        optimizer.load_state_dict(torch.optim.Adam(case.module.parameters()).state_dict())
    with pytest.raises(FileFormatError, match="num_data = 8; got one with 9"):
        optimizer.load_state_dict(VOGN(copy.deepcopy(case.module), case.likelihood, 9).state_dict())
    with pytest.raises(FileFormatError, match="that of OGN"):
        optimizer.load_state_dict(fresh(OGN)[0].state_dict())
    optimizer.backward(x, y)
    with pytest.raises(InputError, match="a step has begun"):
        optimizer.state_dict()


def test_posterior_is_a_gaussian():
    optimizer, module, _, _ = fresh()
    assert isinstance(optimizer.posterior(), Gaussian)
    assert torch.equal(optimizer.posterior().mean, brute_force.flat_weights(module))
