"""The mode of the linearised network against Newton's method with explicit matrices, and Theorem 1 there."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch

from dnn2gp import Dense, Diagonal, FunctionSpace, Kronecker, WeightSpace, convert
from dnn2gp.gp.means import at_mode
from dnn2gp.inference import GaussNewtonStep, LinearisedMode, NetworkOutput
from dnn2gp.support.errors import InputError
from dnn2gp.weights.expansion import Expansion

from problems import KINDS, minimum, problem
from reference import brute_force, linearised
from reference import likelihoods as oracle

LOG_PROBS = {
    "bernoulli": oracle.bernoulli_log_prob,
    "categorical": oracle.categorical_log_prob,
    "poisson": oracle.poisson_log_prob,
}
SPACES = (WeightSpace(), FunctionSpace())


def _parts(case):
    f = brute_force.outputs(case.module, case.x)
    return brute_force.jacobian(case.module, case.x), f, case.weights, case.y, case.loss, case.delta


def _converted(case, **settings):
    return convert(case.module, (case.x, case.y), case.likelihood, case.delta, **settings)


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_mode_is_the_minimum_of_the_linearised_loss(kind, space):
    case = problem(kind, 7)
    theta = linearised.mode(*_parts(case))
    gp = _converted(case, inference=space, mean=LinearisedMode())
    torch.testing.assert_close(gp.inference.mean, theta, rtol=1e-7, atol=1e-7)
    J_test = brute_force.jacobian(case.module, case.x_test)
    f_test = brute_force.outputs(case.module, case.x_test) + J_test @ (theta - case.weights)
    torch.testing.assert_close(gp.predict(case.x_test).latent_mean, f_test, rtol=1e-7, atol=1e-7)
    assert (theta - case.weights).norm() > 1e-2  # so that it is not a minimum already
    assert gp.centre == LinearisedMode()


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("gaussian")])
def test_theorem_1_holds_at_the_mode(kind, space):
    """The posterior precision is the Hessian of the linearised loss at its minimum, and the mean is the minimum."""
    case = problem(kind, 7)
    parts = _parts(case)
    theta = linearised.mode(*parts)
    hessian = torch.func.hessian(lambda at: linearised.total(at, *parts))(theta)
    gp = _converted(case, inference=space, mean=LinearisedMode())
    torch.testing.assert_close(gp.posterior.precision.dense(), hessian, rtol=1e-6, atol=1e-7)
    assert gp.model.relative_gradient() < 1e-7
    J_test = brute_force.jacobian(case.module, case.x_test)
    covariance = torch.einsum("nkp,pq,nlq->nkl", J_test, torch.linalg.inv(hessian), J_test)
    torch.testing.assert_close(gp.predict(case.x_test).latent_covariance, covariance, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", LOG_PROBS)
def test_the_evidence_at_the_mode(kind, space):
    case = problem(kind, 7)
    J, f, w, y, loss, delta = _parts(case)
    expected = linearised.evidence(J, f, w, y, loss, LOG_PROBS[kind], delta)
    found = _converted(case, inference=space, mean=LinearisedMode()).evidence()
    assert found.value == pytest.approx(expected, rel=1e-8)
    at_network = _converted(case, inference=space, mean=NetworkOutput()).evidence()
    assert abs(at_network.value - expected) > 1e-3


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", KINDS)
def test_at_a_minimum_all_means_agree(kind, space):
    case = minimum(kind, 4)
    means = (GaussNewtonStep(), LinearisedMode(), NetworkOutput(), NetworkOutput(sites_at_mode=True))
    found = [_converted(case, inference=space, mean=mean).predict(case.x_test) for mean in means]
    for other in found[1:]:
        torch.testing.assert_close(other.latent_mean, found[0].latent_mean, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(other.latent_covariance, found[0].latent_covariance, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_network_output_keeps_the_predictions_of_the_network(kind):
    case = problem(kind, 7)
    for mean in (NetworkOutput(), NetworkOutput(sites_at_mode=True)):
        gp = _converted(case, mean=mean)
        outputs = brute_force.outputs(case.module, case.x_test)
        assert torch.equal(gp.predict(case.x_test).latent_mean, outputs)
        functions = gp.sample_functions(20_000, torch.Generator().manual_seed(0))(case.x_test)
        deviation = gp.predict(case.x_test).latent_covariance.diagonal(dim1=1, dim2=2).sqrt()
        error = (functions.mean(0).flatten(1) - outputs).abs() / deviation
        assert error.max() < 5 / 20_000**0.5
        assert gp.centre == mean


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
@pytest.mark.parametrize("structure", [Dense(), Diagonal(), Kronecker()])
@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_the_mode_does_not_depend_on_the_structure(kind, structure):
    """The covariance of a structure only preconditions the search."""
    case = problem(kind, 30)
    case = replace(case, delta=torch.full_like(case.delta, 0.7))
    theta = linearised.mode(*_parts(case))
    data = case.x, case.y
    gp = convert(case.module, data, case.likelihood, 0.7, structure=structure, mean=LinearisedMode())
    torch.testing.assert_close(gp.inference.mean, theta, rtol=1e-6, atol=1e-6)


def test_an_overfit_float32_network_reaches_the_mode():
    """Saturated: at the weights of the network, Λ is nearly zero, so that the first preconditioner is the prior."""
    case = problem("categorical", 20, outputs=3, width=20)
    with torch.no_grad():
        case.module[2].weight.mul_(30)
    theta = linearised.mode(*_parts(case))
    gp = convert(
        case.module.float(), (case.x.float(), case.y), case.likelihood, case.delta.float(), mean=LinearisedMode()
    )
    J_test = brute_force.jacobian(case.module.double(), case.x_test)
    f_test = brute_force.outputs(case.module, case.x_test) + J_test @ (theta - case.weights)
    deviation = gp.predict(case.x_test.float()).latent_covariance.diagonal(dim1=1, dim2=2).sqrt()
    error = (gp.predict(case.x_test.float()).latent_mean - f_test) / deviation
    assert error.abs().max() < 1e-3


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", ["bernoulli", "categorical"])
def test_a_network_that_is_certain_of_everything_has_a_mode(kind, space):
    """Logits in the thousands: Λ underflows for most examples, so that a Newton step is much too long."""
    case = problem(kind, 12, outputs=3)
    with torch.no_grad():
        case.module[2].weight.mul_(1000)
    parts = _parts(case)
    gp = _converted(case, inference=space, mean=LinearisedMode())
    theta = case.weights + gp.model.centre
    gradient = torch.func.grad(lambda at: linearised.total(at, *parts))(theta)
    bound = (gradient.square() / case.delta).sum().sqrt()  # √(gᵀVg) ≥ √(gᵀΣ̃g), in posterior standard deviations
    assert bound < 1e-6


def test_gradient_features_have_no_mode():
    case = problem("categorical")
    with pytest.raises(InputError, match="mean"):
        _converted(case, mean=LinearisedMode(), expansion=Expansion.empirical_fisher)


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
@pytest.mark.parametrize("method", SPACES)
def test_the_posterior_at_the_weights_is_freed_before_the_one_at_the_mode_is_computed(method, monkeypatch):
    """Otherwise both would have to fit into memory at once."""
    case, alive = problem("categorical"), []
    model = _converted(case, mean=GaussNewtonStep(), inference=method).model
    infer = type(method).infer

    def start():
        posterior = infer(method, model)
        alive.append(weakref.ref(posterior))
        return posterior

    def watching(self, model):
        assert alive[0]() is None
        return infer(self, model)

    monkeypatch.setattr(type(method), "infer", watching)
    assert at_mode(start, case.likelihood, method).model.expansion.moved is not None
    assert len(alive) == 1
