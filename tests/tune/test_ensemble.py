"""Ensembles of networks: losses, curvature, evidence and training, member by member against plain autograd."""

from __future__ import annotations

from math import log, pi

import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn

from dnn2gp import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood, convert
from dnn2gp.inference import GaussNewtonStep
from dnn2gp.network.data import read_data
from dnn2gp.support.errors import DivergedError, InputError
from dnn2gp.tune.ensemble import Ensemble, initial_weights, write_weights
from dnn2gp.tune.minimise import minimise, train_to_minimum

from problems import functional
from reference import brute_force

DELTAS = torch.tensor([0.3, 2.0, 0.7], dtype=torch.float64)


def build():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def members(kind, count=3, examples=9):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, examples, 2, generator=generator, dtype=torch.float64)
    if kind == "categorical":
        labels = (x.sum(-1) + torch.randn(count, examples, generator=generator) > 0).long()
        return x, labels, CategoricalLikelihood(), brute_force.categorical
    y = torch.sin(x) + 0.1 * torch.randn(count, examples, 2, generator=generator, dtype=torch.float64)
    if kind == "bernoulli":
        return x, (y > 0).double(), BernoulliLikelihood(), brute_force.bernoulli
    return x, y, GaussianLikelihood(0.4), brute_force.gaussian(0.4)


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical"])
@pytest.mark.parametrize("shared", [False, True])
def test_loss_curvature_and_evidence_of_each_member(kind, shared):
    x, y, likelihood, loss = members(kind)
    x, y = (x[:1], y[:1]) if shared else (x, y)
    weights = initial_weights(build, [1, 2, 3])
    ensemble = Ensemble(build(), x, y, likelihood, DELTAS)
    curvature, evidence = ensemble.curvature(weights), ensemble.evidence(weights)
    cautious = ensemble.cautious_evidence(weights, curvature)
    for member, delta in enumerate(DELTAS):
        own = 0 if shared else member
        module = brute_force.with_weights(build(), weights[member])
        J, f = brute_force.jacobian(module, x[own]), brute_force.outputs(module, x[own])
        r, Lam = brute_force.residual_and_precision(loss, f, y[own])
        total = sum(loss(fi, yi) for fi, yi in zip(f, y[own], strict=True))
        penalty = 0.5 * delta * weights[member].square().sum()
        gradient = torch.einsum("nkp,nk->p", J, r) + delta * weights[member]
        matrix = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J)
        torch.testing.assert_close(ensemble.loss(weights)[member], total + penalty, rtol=1e-12, atol=0)
        torch.testing.assert_close(curvature.matrix[member], matrix, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(curvature.gradient[member], gradient, rtol=1e-10, atol=1e-12)
        parts = (gradient - delta * weights[member]).norm() + (delta * weights[member]).norm()
        torch.testing.assert_close(curvature.relative_gradient[member], gradient.norm() / parts, rtol=1e-10, atol=0)
        precision = matrix + delta * torch.eye(len(gradient)).double()
        expected = -total - penalty - 0.5 * (torch.logdet(precision) - len(gradient) * delta.log())
        gain = 0.5 * gradient @ torch.linalg.solve(precision, gradient)
        if kind == "gaussian":
            expected -= y[own].numel() * (log(0.4) + 0.5 * log(2 * pi))
        torch.testing.assert_close(cautious[member], expected - gain, rtol=1e-10, atol=0)
        expected += gain if kind == "gaussian" else 0
        torch.testing.assert_close(evidence[member], expected, rtol=1e-10, atol=0)
        log_prob = likelihood.log_prob(f, y[own]).sum()
        torch.testing.assert_close(ensemble.log_prob(weights)[member], log_prob, rtol=1e-12, atol=0)


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical"])
def test_the_evidence_of_each_member_is_that_of_convert(kind):
    """The fast path is the product: evidence and relative gradient, one network at a time."""
    x, y, likelihood, _ = members(kind)
    weights = initial_weights(build, [1, 2, 3])
    ensemble, module = Ensemble(build(), x, y, likelihood, DELTAS), build()
    evidence, curvature = ensemble.evidence(weights), ensemble.curvature(weights)
    for member, delta in enumerate(DELTAS.tolist()):
        write_weights(module, weights[member])
        gp = convert(module, (x[member], y[member]), likelihood, delta, mean=GaussNewtonStep())
        assert evidence[member].item() == pytest.approx(gp.evidence().value, rel=1e-10)
        assert curvature.relative_gradient[member].item() == pytest.approx(gp.model.relative_gradient(), rel=1e-9)


def test_evidence_with_a_noise_of_its_own_for_each_member():
    """Trained with σ = 1 and δσ²: the density of the transformed regression with σ and δ, by scipy."""
    x, y, _, _ = members("gaussian")
    sigma = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    weights = initial_weights(build, [1, 2, 3])
    ensemble = Ensemble(build(), x, y, GaussianLikelihood(1.0), DELTAS * sigma**2)
    found = ensemble.evidence(weights, variance=sigma**2)
    for member in range(3):
        module = brute_force.with_weights(build(), weights[member])
        J, f = brute_force.jacobian(module, x[member]), brute_force.outputs(module, x[member])
        flat, outputs = J.flatten(0, 1), (J @ weights[member] - (f - y[member])).flatten()
        covariance = flat @ flat.T / DELTAS[member] + sigma[member] ** 2 * torch.eye(len(flat)).double()
        expected = multivariate_normal(torch.zeros(len(flat)).numpy(), covariance.numpy()).logpdf(outputs.numpy())
        assert found[member].item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical"])
def test_every_member_ends_at_a_minimum_of_its_own_loss(kind):
    x, y, likelihood, loss = members(kind)
    ensemble = Ensemble(build(), x, y, likelihood, DELTAS)
    found = minimise(ensemble, initial_weights(build, [1, 2, 3]), tolerance=1e-7)
    assert found.relative_gradient.max() < 1e-7
    module = build()
    for member, delta in enumerate(DELTAS):

        def total(weights, member=member, delta=delta):
            f = functional(module, weights, x[member])
            own = sum(loss(fi, yi) for fi, yi in zip(f, y[member], strict=True))
            return own + 0.5 * delta * weights.square().sum()

        assert total(found.weights[member]).item() == pytest.approx(found.loss[member].item(), rel=1e-10)
        scale = delta * found.weights[member].norm()
        assert torch.func.grad(total)(found.weights[member]).norm() < 1e-6 * scale
        assert torch.linalg.eigvalsh(torch.func.hessian(total)(found.weights[member]))[0] > -1e-6


@pytest.mark.parametrize("damping", [1.0, 1e-3])
def test_a_training_may_end_when_little_is_left_to_gain(damping):
    """½ gᵀ(H + δ)⁻¹g at its end, by dense matrices, is below what was asked for: the bound holds with any damping."""
    x, y, likelihood, _ = members("gaussian")
    ensemble = Ensemble(build(), x, y, likelihood, DELTAS)
    asked = torch.tensor([1e-1, 1e-3, 1e-6], dtype=torch.float64)
    found = minimise(ensemble, initial_weights(build, [1, 2, 3]), tolerance=0.0, gain=asked, damping=damping)
    assert 0 < found.iterations < 500
    for member, delta in enumerate(DELTAS):
        module = brute_force.with_weights(build(), found.weights[member])
        J = brute_force.jacobian(module, x[member]).flatten(0, 1) / 0.4
        r = (brute_force.outputs(module, x[member]) - y[member]).flatten() / 0.4
        gradient = J.T @ r + delta * found.weights[member]
        left = 0.5 * gradient @ torch.linalg.solve(J.T @ J + delta * torch.eye(22).double(), gradient)
        assert left < asked[member]


def test_the_order_and_company_of_members_do_not_matter():
    x, y, likelihood, _ = members("gaussian")
    weights = initial_weights(build, [1, 2, 3])
    together = minimise(Ensemble(build(), x, y, likelihood, DELTAS), weights, max_iterations=20)
    alone = minimise(Ensemble(build(), x[1:2], y[1:2], likelihood, DELTAS[1:2]), weights[1:2], max_iterations=20)
    torch.testing.assert_close(together.weights[1], alone.weights[0], rtol=1e-6, atol=1e-8)


def test_a_weak_start_is_left_where_nothing_lowers_the_loss():
    """At the minimum there is no step to take, and none is taken."""
    x, y, likelihood, _ = members("gaussian")
    ensemble = Ensemble(build(), x, y, likelihood, DELTAS)
    first = minimise(ensemble, initial_weights(build, [1, 2, 3]))
    again = minimise(ensemble, first.weights)
    assert again.iterations == 0
    assert torch.equal(again.weights, first.weights)


@pytest.mark.slow
@pytest.mark.parametrize("inplace", [False, True])
def test_a_network_is_trained_in_place_by_gauss_newton_or_by_lbfgs(inplace):
    """In-place layers are not for vmap: L-BFGS takes them, and ends at a minimum too."""
    x, y, likelihood, _ = members("gaussian")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 4), nn.ELU(inplace=inplace), nn.Linear(4, 2)).double()
    delta = torch.full((22,), 0.5, dtype=torch.float64)
    train_to_minimum(network, read_data((x[0], y[0])), likelihood, delta)
    assert convert(network, (x[0], y[0]), likelihood, 0.5).model.relative_gradient() < 1e-4


def test_frozen_weights_stay():
    x, y, likelihood, _ = members("gaussian")
    network = build()
    network[0].requires_grad_(False)
    before = network[0].weight.clone()
    train_to_minimum(network, read_data((x[0], y[0])), likelihood, torch.full((10,), 0.5, dtype=torch.float64))
    assert torch.equal(network[0].weight, before)
    assert convert(network, (x[0], y[0]), likelihood, 0.5).model.relative_gradient() < 1e-6


def test_first_weights_leave_the_global_generator_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = initial_weights(build, [1, 2])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, initial_weights(build, [1, 2]))
    assert not torch.equal(first[0], first[1])
    network = build()
    write_weights(network, first[1])
    assert torch.equal(brute_force.flat_weights(network), first[1])


def test_what_does_not_fit_is_refused():
    x, y, likelihood, _ = members("gaussian")
    with pytest.raises(InputError, match="inputs: expected"):
        Ensemble(build(), x, y, likelihood, DELTAS[:2])
    with pytest.raises(InputError, match="likelihood"):
        Ensemble(build(), x, y, GaussianLikelihood(torch.ones(9, 1)), DELTAS)
    bad = initial_weights(build, [1, 2, 3])
    bad[1, 0] = torch.nan
    with pytest.raises(DivergedError, match="member 1"):
        minimise(Ensemble(build(), x, y, likelihood, DELTAS), bad)
