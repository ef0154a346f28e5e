"""The optimizers: a torch.optim.Optimizer in every way, and q_t besides."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from math import log

import pytest
import torch
from torch import Tensor, nn

from dnn2gp import (
    OGGN,
    OGN,
    ON,
    VOGGN,
    VOGN,
    VON,
    CategoricalLikelihood,
    GaussianLikelihood,
    LinearModel,
    Recorder,
    diagnose,
    load,
    load_checkpoint,
    save,
    save_checkpoint,
)
from dnn2gp.data import Data
from dnn2gp.errors import DivergedError, FileFormatError, InputError, MemoryBudgetError
from dnn2gp.gaussian import Gaussian
from dnn2gp.layout import Layout
from dnn2gp.optimizers import OnlineNewtonOptimizer
from dnn2gp.structures import Dense, Diagonal

from problems import problem
from reference import brute_force

ROWS = {
    VON: ("exact Hessian", Dense, False),
    ON: ("exact Hessian", Dense, True),
    VOGGN: ("Gauss-Newton", Dense, False),
    OGGN: ("Gauss-Newton", Dense, True),
    VOGN: ("empirical Fisher", Diagonal, False),
    OGN: ("empirical Fisher", Diagonal, True),
}


def fresh(kind=VOGN, case=None, **settings) -> tuple[OnlineNewtonOptimizer, nn.Module, Tensor, Tensor]:
    case = case or problem("categorical", examples=8, outputs=3)
    module = copy.deepcopy(case.module)
    own = {"lr": 0.05, "prior_precision": case.delta, "initial_precision": 50.0, **settings}
    return kind(module, case.likelihood, len(case.x), **own), module, case.x, case.y


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


class Normalised(nn.Module):
    """Convolution, BatchNorm, embedding, LayerNorm and attention in one small network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.places = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.layer_norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.norm(self.conv(x)).relu()).mT + self.places(torch.arange(x.shape[2]))
        return self.head(self.layer_norm(h + self.attention(h, h, h, need_weights=False)[0]).mean(1))


def normalised() -> tuple[Normalised, Tensor, Tensor]:
    torch.manual_seed(0)
    return Normalised().double(), torch.randn(12, 2, 5).double() + 2, torch.randint(3, (12,))


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


def normalised_1d(kind=VOGN, **settings):
    """A network with BatchNorm on 2-D inputs, in train mode, after a few steps."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1)).double().train()
    x, y = torch.randn(8, 3).double() + 1, torch.randn(8, 1).double()
    optimizer = kind(module, GaussianLikelihood(0.5), 8, lr=0.1, **settings)
    for _ in range(3):
        optimizer.step(x, y)
    return optimizer, module, x, y


def test_a_gp_stays_as_it_was_when_training_goes_on(tmp_path):
    """Neither buffers nor frozen weights of a GP, a record or an `info` move with the network's."""
    optimizer, module, x, y = normalised_1d(VOGGN)
    state = optimizer.snapshot()
    info = optimizer.step(x, y)
    gp = optimizer.gaussian_process((x, y), generator=torch.Generator().manual_seed(0))
    expected, after = gp.predict(x).mean.clone(), optimizer.posterior()
    for _ in range(5):
        optimizer.step(x + 1, y)
    torch.testing.assert_close(gp.predict(x).mean, expected, rtol=1e-13, atol=1e-14)
    posterior = LinearModel.from_step(state, info).posterior()
    torch.testing.assert_close(posterior.mean, after.mean, rtol=1e-9, atol=1e-10)
    save(gp, tmp_path / "gp.safetensors")
    again = load(tmp_path / "gp.safetensors", copy.deepcopy(module))
    torch.testing.assert_close(again.predict(x).mean, expected, rtol=1e-12, atol=1e-13)
    with pytest.raises(InputError, match="before the step"):
        LinearModel.from_step(optimizer.snapshot(), info)
    optimizer.snapshot().precision.matrix.zero_()
    optimizer.step(x, y)  # a snapshot is a copy


def test_several_samples_through_batch_normalisation():
    """Jᵀu and J v of the stacked features against autograd, at samples of a diagonal q."""
    optimizer, module, x, y = normalised_1d(VOGN, num_samples=3)
    gp = optimizer.gaussian_process((x, y), generator=torch.Generator().manual_seed(0))
    module.eval()
    jacobians = [brute_force.jacobian(brute_force.with_weights(module, each.anchor), x) for each in gp.features.maps]
    J = torch.cat(jacobians, 1)
    u = torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    v = torch.randn(J.shape[2], 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(gp.features.vjp(x, u), torch.einsum("nkp,nks->ps", J, u), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(gp.features.jvp(x, v), J @ v, rtol=1e-10, atol=1e-11)
    # The kernel is that of the average of the maps.
    mean = torch.stack(jacobians).mean(0)
    V = torch.diag(1 / gp.prior.precision.diagonal())
    full = torch.einsum("nkp,pq,mlq->nkml", mean, V, mean)
    torch.testing.assert_close(gp.kernel.full(x), full, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(gp.kernel.trace(x), full.diagonal(dim1=1, dim2=3).sum(-1), rtol=1e-10, atol=1e-13)


def test_what_a_gp_of_a_step_does_not_have():
    optimizer, _, x, y = normalised_1d(OGGN)
    gp = optimizer.gaussian_process((x, y))
    for question, words in ((gp.evidence_gradient, "training step"), (lambda: gp.condition((x, y)), "training step")):
        with pytest.raises(InputError, match=words):
            question()
    with pytest.raises(InputError, match="training step"):
        diagnose(gp)


def test_changes_of_the_network_between_steps():
    optimizer, module, x, y = fresh(OGN)
    optimizer.step(x, y)
    module[0].requires_grad_(False)
    with pytest.raises(InputError, match=r"0\.bias, 0\.weight .*frozen, thawed or replaced"):
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


def test_gp_of_the_present_iteration():
    case = problem("categorical", examples=8, outputs=3)
    optimizer, module, x, y = fresh(VOGN, case, num_samples=2)
    optimizer.step(x, y)
    before = optimizer.generator.get_state()
    gp = optimizer.gaussian_process((x, y), generator=torch.Generator().manual_seed(0))
    assert gp.num_maps == 2
    assert gp.predict(case.x_test).mean.shape == (4, 3)
    # V_t⁻¹ = (1−β) Σ_t⁻¹ + β δ
    expected = 0.95 * optimizer.posterior().precision.diagonal() + 0.05 * case.delta
    torch.testing.assert_close(gp.prior.precision.diagonal(), expected, rtol=1e-12, atol=0)
    assert torch.equal(optimizer.generator.get_state(), before)
    assert torch.equal(optimizer.posterior().mean, brute_force.flat_weights(module))


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


def test_recorder_keeps_gps_on_a_few_examples():
    optimizer, _, x, y = fresh(VOGN)
    other, _, _, _ = fresh(VOGN)
    recorder = Recorder((x[:4], y[:4]), [1, 3])
    optimizer.register_step_post_hook(recorder)
    for _ in range(4):
        optimizer.step(x, y)
        other.step(x, y)
    assert [record.step for record in recorder.records] == [1, 3]
    assert recorder.records[0].gp.model.expansion.num_examples == 4
    assert torch.equal(optimizer.posterior().mean, other.posterior().mean)  # recording changes nothing
    with pytest.raises(InputError, match="steps"):
        Recorder((x, y), [0])


@pytest.mark.parametrize("num_samples", [1, 3])
def test_gp_of_a_step_in_a_file(num_samples, tmp_path):
    case = problem("categorical", examples=8, outputs=3)
    optimizer, module, x, y = fresh(VOGN, case, num_samples=num_samples)
    optimizer.step(x, y)
    gp = optimizer.gaussian_process((x, y), generator=torch.Generator().manual_seed(0))
    save(gp, tmp_path / "gp.safetensors")
    again = load(tmp_path / "gp.safetensors", copy.deepcopy(module))
    for own, other in ((gp.predict(case.x_test), again.predict(case.x_test)),):
        torch.testing.assert_close(other.mean, own.mean, rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(other.epistemic, own.epistemic, rtol=1e-12, atol=1e-14)
    assert again.evidence().value == pytest.approx(gp.evidence().value, rel=1e-12)


def test_conditioning_a_gp_of_a_step_is_refused():
    optimizer, _, x, y = fresh(VOGN)
    gp = optimizer.gaussian_process((x, y))
    with pytest.raises(InputError, match="training step"):
        gp.condition((x, y))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "lr: expected a learning rate"),
        ({"lr": 1.5}, "lr: expected a learning rate"),
        ({"precision_lr": -0.1}, "precision_lr: expected a learning rate"),
        ({"initial_precision": -1.0}, "initial_precision: expected a finite number > 0"),
        ({"prior_precision": -1.0}, "prior_precision"),
        ({"num_samples": 0}, "OGN is the method that looks at the mean"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        fresh(VOGN, **settings)


def test_bad_arguments():
    case = problem("categorical", examples=8, outputs=3)
    with pytest.raises(InputError, match="looks at the mean and draws none"):
        fresh(OGN, num_samples=2)
    with pytest.raises(InputError, match="for all examples alike"):
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
    with pytest.raises(InputError, match="One group of weights"):
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


def test_checkpoints_hold_trees_and_nothing_else(tmp_path):
    path = tmp_path / "tree.safetensors"
    tree = {"a": [1, 2.5, None, True, "word", (3, torch.arange(3))], "b": {0: {"c": torch.eye(2)}, 1: {}}}
    save_checkpoint(path, tree)
    found = load_checkpoint(path)
    assert found["a"][:5] == tree["a"][:5]
    assert isinstance(found["a"][5], tuple)
    assert torch.equal(found["a"][5][1], torch.arange(3))
    assert torch.equal(found["b"][0]["c"], torch.eye(2))
    with pytest.raises(InputError, match=r"checkpoint\['x'\]"):
        save_checkpoint(path, {"x": object()})
    assert load_checkpoint(path)["a"][0] == 1  # the old one is whole
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(FileFormatError, match="not a whole checkpoint"):
        load_checkpoint(path)


def test_posterior_is_a_gaussian():
    optimizer, module, _, _ = fresh()
    assert isinstance(optimizer.posterior(), Gaussian)
    assert torch.equal(optimizer.posterior().mean, brute_force.flat_weights(module))
