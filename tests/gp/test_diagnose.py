"""The diagnosis: its numbers against brute force, and its words on good and bad networks."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from dnn2gp import CategoricalLikelihood, Diagonal, FunctionSpace, GaussianLikelihood, WeightSpace, convert, diagnose
from dnn2gp.weights import Expansion

from problems import problem
from reference import brute_force
from zoo import ZOO, specimen

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


@pytest.mark.slow
@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
def test_numbers(space):
    case = problem("categorical", 9, 3)
    J, r, Lam = case.parts()
    w = case.weights
    mean, covariance = brute_force.weight_posterior(J, r, Lam, w, case.delta)
    data, prior = torch.einsum("nkp,nk->p", J, r), case.delta * w
    ggn = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J)
    rest = torch.func.hessian(case.total_loss)(w) - torch.diag(case.delta) - ggn
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, inference=space)
    found = diagnose(gp, num_probes=4000)
    assert found.relative_gradient == pytest.approx(
        ((data + prior).norm() / (data.norm() + prior.norm())).item(), rel=1e-9
    )
    assert found.step_weights == pytest.approx(((mean - w).norm() / w.norm()).item(), rel=1e-8)
    moves = J @ (mean - w)
    variances = torch.einsum("nkp,pq,nkq->nk", J, covariance, J)
    assert found.step_outputs == pytest.approx((moves.square().mean() / variances.mean()).sqrt().item(), rel=1e-8)
    gradient = data + prior
    assert found.step_bound == pytest.approx((gradient @ covariance @ gradient).sqrt().item(), rel=1e-8)
    assert (moves.abs() <= found.step_bound * variances.sqrt() * (1 + 1e-9)).all()
    # 4000 probes: the Hutchinson estimate has a relative spread of about sqrt(2 / 4000) in each norm.
    assert found.curvature_gap == pytest.approx((rest.norm() / ggn.norm()).item(), rel=0.1)
    smallest = torch.linalg.eigvalsh(Lam)[:, 1]  # the first is the zero of softmax
    assert found.smallest_noise_precision == pytest.approx(smallest.min().item(), rel=1e-8)
    assert found.spaces_gap < 1e-10
    assert found.uninformative == 0


@pytest.mark.slow
def test_a_trained_network_is_trusted_in_words():
    x = torch.linspace(-2, 2, 60, dtype=torch.float64)[:, None]
    y = torch.sin(2 * x)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    optimizer = torch.optim.LBFGS(
        network.parameters(), max_iter=4000, tolerance_grad=1e-10, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        penalty = sum((p**2).sum() for p in network.parameters())
        loss = ((network(x) - y) ** 2).sum() / (2 * 0.1**2) + 0.5 * 0.1 * penalty
        loss.backward()
        return loss

    optimizer.step(closure)
    report = diagnose(convert(network, (x, y), GaussianLikelihood(0.1), 0.1))
    assert report.verdict == "good", str(report)
    assert report.trustworthy
    assert {finding.grade for finding in report.findings} == {"good"}
    assert "→" not in str(report)  # nothing to do


def test_an_untrained_network_is_not_trusted_and_the_report_says_what_to_do():
    case = problem("gaussian", 30)
    report = diagnose(convert(case.module, (case.x, case.y + 10), case.likelihood, case.delta))
    assert report.verdict == "bad"
    assert not report.trustworthy
    assert "[bad] gradient of the loss" in str(report)
    assert "→" in str(report)  # advice
    assert "L-BFGS" in str(report)


def test_a_saturated_network_is_found_out():
    network = nn.Linear(2, 2).double()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1e3, 0.0], [-1e3, 0.0]]))
        network.bias.zero_()
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.5], [2.0, 1.0]], dtype=torch.float64)
    report = diagnose(convert(network, (x, torch.tensor([0, 1, 0])), CategoricalLikelihood(), 1e-3))
    assert report.uninformative == 1
    assert "100% of the examples" in str(report)
    assert "saturated" in str(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_network_gets_all_findings(name):
    case = specimen(name)
    report = diagnose(convert(case.module, (case.inputs, case.targets), case.entry.likelihood, 1.0))
    assert report.curvature_gap is not None
    assert report.spaces_gap < 1e-8
    frozen = any(not weight.requires_grad for weight in case.module.parameters())
    assert len(report.findings) == 5 + frozen
    assert (report.share < 1) == frozen


def test_float32_is_no_cause_for_alarm():
    case = problem("gaussian", 20)
    gp = convert(copy.deepcopy(case.module).float(), (case.x.float(), case.y.float()), case.likelihood, case.delta)
    assert diagnose(gp).spaces_gap < 1e-3


def test_gradient_features_move_the_outputs_of_the_network():
    case = problem("categorical", 8, 3)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, expansion=Expansion.empirical_fisher)
    report = diagnose(gp)
    J, r, _ = case.parts()
    gradients = torch.einsum("nkp,nk->np", J, r)
    covariance = torch.linalg.inv(gradients.T @ gradients + torch.diag(case.delta))
    moves = J @ covariance @ (gradients.sum(0) + case.delta * case.weights)
    variances = torch.einsum("nkp,pq,nkq->nk", J, covariance, J)
    assert report.step_outputs == pytest.approx((moves.square().mean() / variances.mean()).sqrt().item(), rel=1e-8)
    assert report.curvature_gap is None
    assert "not available" in str(report)


def test_a_diagonal_posterior_is_not_excused():
    case = problem("gaussian", 30)
    data = (case.x, case.y + 10)
    report = diagnose(convert(case.module, data, case.likelihood, case.delta, structure=Diagonal()))
    assert not report.exact
    assert report.verdict == "bad"
    assert "[bad] gradient of the loss" in str(report)
    assert "not taken" in str(report)  # its mean stays at the network


def test_a_posterior_of_some_weights_is_one_with_care():
    """The last layer of a network at its minimum: nothing else is wrong."""
    case = problem("gaussian", 20)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(case.x.shape[1], 3), nn.Tanh(), nn.Linear(3, case.y.shape[1])).double()
    head, hidden = module[2], module[:2](case.x).detach()
    rows = torch.cat([hidden, hidden.new_ones(20, 1)], 1)
    sigma, delta = 0.5, 0.2
    solution = torch.linalg.solve(rows.T @ rows + delta * sigma**2 * torch.eye(4, dtype=rows.dtype), rows.T @ case.y)
    with torch.no_grad():
        head.weight.copy_(solution[:3].T)
        head.bias.copy_(solution[3])
    gp = convert(module, (case.x, case.y), GaussianLikelihood(sigma), delta, subset="last layer")
    report = diagnose(gp)
    weights = [weight.numel() for weight in module.parameters()]
    assert report.share == sum(weights[2:]) / sum(weights)
    assert report.verdict == "caution"
    assert "[caution] weights with a posterior" in str(report)
    assert "not in subset=" in str(report)
    assert [finding.grade for finding in report.findings[:5]] == ["good"] * 5


def test_bad_conditioning_shows_as_a_gap_between_the_spaces():
    case = problem("gaussian", 20)
    gp = convert(case.module, (case.x, case.y), GaussianLikelihood(1e-5), 1e-3, inference=FunctionSpace())
    report = diagnose(gp)
    assert report.spaces_gap > 1e-6
    assert "conditioned" in str(report)


def test_the_same_network_gives_the_same_report_and_the_grades_follow_the_numbers():
    case = problem("gaussian", 8)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta)
    report = diagnose(gp)
    assert report == diagnose(gp)
    fine = replace(
        report, relative_gradient=0.0, step_bound=0.0, step_outputs=0.0, curvature_gap=0.1, uninformative=0.0
    )
    assert fine.verdict == "good"
    assert replace(fine, relative_gradient=0.9, step_bound=0.4).verdict == "good"
    assert replace(fine, relative_gradient=0.9, step_bound=9.0).verdict == "caution"
    assert replace(fine, relative_gradient=0.9, step_bound=9.0, exact=False).verdict == "bad"
    assert replace(fine, exact=False).verdict == "caution"  # no approximate posterior is called trustworthy
    for change in ({"curvature_gap": 1.0}, {"step_outputs": 1.0}, {"uninformative": 0.7}, {"spaces_gap": 1e-4}):
        assert replace(fine, **change).verdict == "caution"
    for change in ({"curvature_gap": 3.0}, {"step_outputs": 3.0}, {"uninformative": 1.0}, {"spaces_gap": 0.1}):
        assert replace(fine, **change).verdict == "bad"
