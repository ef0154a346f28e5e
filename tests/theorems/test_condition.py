"""Conditioning on more data gives a GP again: that of all the data at the same weights."""

from __future__ import annotations

import pytest
import torch

from dnn2gp import Diagonal, FunctionSpace, GaussianLikelihood, WeightSpace, convert
from dnn2gp.inference import GaussNewtonStep, LinearisedMode, NetworkOutput
from dnn2gp.support.errors import InputError
from dnn2gp.weights import Expansion

from problems import KINDS, problem
from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"inference": WeightSpace()}, {"inference": FunctionSpace()}])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mean", [GaussNewtonStep(), LinearisedMode()], ids=repr)
def test_conditioning_is_having_had_the_data_at_once(kind, options, mean):
    case = problem(kind, 9)
    options = {**options, "mean": mean}
    x, y = case.x, case.y
    first = convert(case.module, (x[:4], y[:4]), case.likelihood, case.delta, **options)
    before = first.covariance(case.x_test).clone()
    then = first.condition((x[4:7], y[4:7])).condition((x[7:], y[7:]))
    whole = convert(case.module, (x, y), case.likelihood, case.delta, **options)
    for a, b in [
        (then.inference.mean, whole.inference.mean),
        (then.covariance(case.x_test), whole.covariance(case.x_test)),
        (then.predict(case.x_test).mean, whole.predict(case.x_test).mean),
        (torch.tensor(then.evidence().value), torch.tensor(whole.evidence().value)),
        (then.evidence_gradient().prior_precision, whole.evidence_gradient().prior_precision),
    ]:
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
    assert torch.equal(first.covariance(case.x_test), before)  # the first GP is as it was


def test_conditioning_shrinks_the_uncertainty_as_brute_force_says():
    case = problem("gaussian", 6)
    gp = convert(case.module, (case.x[:3], case.y[:3]), case.likelihood, case.delta)
    after = gp.condition((case.x[3:], case.y[3:]))
    J, r, Lam = case.parts()
    mean, covariance = brute_force.weight_posterior(J, r, Lam, case.weights, case.delta)
    J_test = brute_force.jacobian(case.module, case.x_test)
    expected = torch.einsum("nkp,pq,mlq->nkml", J_test, covariance, J_test)
    torch.testing.assert_close(after.covariance(case.x_test), expected, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(after.inference.mean, mean, rtol=1e-8, atol=1e-9)
    assert (after.predict(case.x_test).epistemic < gp.predict(case.x_test).epistemic).all()


def test_one_new_example_may_carry_its_own_noise():
    case = problem("gaussian", 6)
    gp = convert(case.module, (case.x[:5], case.y[:5]), case.likelihood, case.delta)
    precise = gp.condition((case.x_test[:1], torch.zeros(1, 2, dtype=torch.float64)), GaussianLikelihood(1e-3))
    torch.testing.assert_close(
        precise.predict(case.x_test[:1]).latent_mean, torch.zeros(1, 2, dtype=torch.float64), rtol=0, atol=1e-4
    )
    assert precise.predict(case.x_test[:1]).epistemic.max() < 1e-5


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
def test_around_the_network_each_example_keeps_its_noise(space):
    """The covariance is that of both noises, and the mean moves as far as the minimum does."""
    case = problem("gaussian", 9)
    settings = {"inference": space, "mean": NetworkOutput(sites_at_mode=True)}
    gp = convert(case.module, (case.x[:5], case.y[:5]), GaussianLikelihood(0.3), case.delta, **settings)
    more = gp.condition((case.x[5:], case.y[5:]), GaussianLikelihood(1.5))
    J, f = brute_force.jacobian(case.module, case.x), brute_force.outputs(case.module, case.x)
    sigma = torch.tensor([0.3] * 5 + [1.5] * 4, dtype=torch.float64)[:, None, None]
    r, Lam = (f - case.y) / sigma[..., 0].square(), torch.eye(2, dtype=torch.float64) / sigma.square()
    before, _ = brute_force.weight_posterior(J[:5], r[:5], Lam[:5], case.weights, case.delta)
    after, covariance = brute_force.weight_posterior(J, r, Lam, case.weights, case.delta)
    J_test = brute_force.jacobian(case.module, case.x_test)
    expected = torch.einsum("nkp,pq,mlq->nkml", J_test, covariance, J_test)
    torch.testing.assert_close(more.covariance(case.x_test), expected, rtol=1e-7, atol=1e-8)
    mean = brute_force.outputs(case.module, case.x_test) + J_test @ (after - before)
    torch.testing.assert_close(more.predict(case.x_test).latent_mean, mean, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
def test_noise_of_its_own_leaves_an_exact_evidence_and_no_gradient_in_sigma(space):
    """Two σ: the evidence is log N(ỹ | 0, K + Λ⁻¹) with both; the σ of the first data is not that of all."""
    case = problem("gaussian", 9)
    gp = convert(case.module, (case.x[:5], case.y[:5]), GaussianLikelihood(0.3), case.delta, inference=space)
    more = gp.condition((case.x[5:], case.y[5:]), GaussianLikelihood(1.5))
    sigma = torch.tensor([0.3] * 5 + [1.5] * 4, dtype=torch.float64)[:, None].expand(9, 2)
    whole = convert(case.module, (case.x, case.y), GaussianLikelihood(sigma), case.delta, inference=space)
    assert more.evidence().value == pytest.approx(whole.evidence().value, rel=1e-9)
    assert gp.evidence_gradient().sigma is not None
    assert more.evidence_gradient().sigma is None
    same = gp.condition((case.x[5:], case.y[5:]))
    assert same.evidence_gradient().sigma is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": Diagonal()}, "exact posterior; got a diagonal"),
        ({"expansion": Expansion.empirical_fisher}, "got one with gradient features"),
    ],
)
def test_what_cannot_be_conditioned_says_so(options, message):
    case = problem("gaussian", 6)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, **options)
    with pytest.raises(InputError, match=message):
        gp.condition((case.x, case.y))
