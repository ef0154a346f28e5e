"""gp.novelty and gp.outlier_score against explicit matrices."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from dnn2gp import CategoricalLikelihood, FunctionSpace, Iterative, NetworkOutput, WeightSpace, convert
from dnn2gp.support.errors import InputError

from problems import KINDS, problem
from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace(), Iterative(rank=100)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_share_of_the_prior_variance_that_is_left(kind, inference):
    case = problem(kind, 7)
    J, _, Lam = case.parts()
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + case.delta.diag()
    rows = brute_force.jacobian(case.module, case.x_test)
    after, before = (rows @ each @ rows.mT for each in (torch.linalg.inv(precision), (1 / case.delta).diag()))
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=NetworkOutput(), inference=inference)
    if kind == "categorical":
        p = brute_force.outputs(case.module, case.x_test).softmax(1)
        noise = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        expected = (noise * after).sum((1, 2)) / (noise * before).sum((1, 2))
    else:
        expected = after.diagonal(dim1=1, dim2=2) / before.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(gp.novelty(case.x_test), expected, rtol=1e-7, atol=1e-9)
    assert bool(((expected > 0) & (expected < 1)).all())
    if kind in ("categorical", "bernoulli"):
        entropy = gp.predict(case.x_test).entropy
        torch.testing.assert_close(gp.outlier_score(case.x_test), expected * entropy, rtol=1e-7, atol=1e-9)
    else:
        with pytest.raises(InputError, match=r"outlier_score: expected .* Use gp\.novelty"):
            gp.outlier_score(case.x_test)


def test_a_network_that_is_certain_has_a_novelty():
    """With logits 2000 apart, probabilities and Λ underflow, and their ratio does not."""
    torch.manual_seed(0)
    network, x = nn.Linear(2, 3), torch.randn(20, 2)
    gp = convert(network, (x, torch.arange(20) % 3), CategoricalLikelihood(), 1.0, mean=NetworkOutput())
    found = gp.novelty(1e4 * x)
    assert bool(found.isfinite().all())
    assert bool(((found > 0) & (found <= 1)).all())


@cache
def _classifier():
    """A GP trained on a narrow strip of the plane, and its training examples."""
    torch.manual_seed(0)
    x = (torch.randn(200, 2) * torch.tensor([1.0, 0.1])).double()
    network = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 2)).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    labels = (x[:, 0] > 0).long()
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), labels).backward()
        optimizer.step()
    return convert(network, (x, labels), CategoricalLikelihood()), x, network


def test_unfamiliar_inputs_have_the_larger_score():
    gp, x, _ = _classifier()
    away = torch.stack([x[:, 0], torch.full_like(x[:, 0], 3.0)], 1)
    assert gp.novelty(away).median() > gp.novelty(x).median()
    assert gp.outlier_score(away).median() > 2 * gp.outlier_score(x).median()


def test_threshold_of_familiar_inputs():
    gp, x, _ = _classifier()
    for share in (0.05, 0.3):
        found = gp.outlier_threshold(x, share)
        assert (gp.outlier_score(x) > found).double().mean().item() == pytest.approx(share, abs=1.5 / len(x))


def test_too_few_familiar_inputs():
    gp, x, _ = _classifier()
    with pytest.raises(InputError, match=r"familiar: expected at least 20 inputs for 0\.05 false alarms; got 19\."):
        gp.outlier_threshold(x[:19])
    assert gp.outlier_threshold(x[:20]) > 0


def test_threshold_by_leave_one_out():
    gp, x, network = _classifier()
    left = gp.leave_one_out().prediction.uncalibrated
    rows = brute_force.jacobian(network, x)
    prior = rows @ rows.mT / gp.prior.precision.diagonal()[0]
    contrast = torch.tensor([1.0, -1.0], dtype=torch.float64)  # with two classes, Λ is a multiple of c cᵀ
    share = (contrast @ left.latent_covariance @ contrast) / (contrast @ prior @ contrast)
    scores = gp.leave_one_out().prediction.entropy * share
    assert gp.outlier_threshold() == pytest.approx(scores.quantile(0.95).item(), rel=1e-6)
    assert gp.outlier_threshold() > gp.outlier_score(x).quantile(0.95)  # without leaving them out, scores are smaller


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_threshold_needs_a_share(share):
    gp, _, _ = _classifier()
    with pytest.raises(InputError, match=r"^false_alarms"):
        gp.outlier_threshold(false_alarms=share)
