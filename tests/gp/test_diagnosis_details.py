"""The details of a diagnosis against brute force."""

from __future__ import annotations

import copy

import pytest
import torch

from dnn2gp import FunctionSpace, GaussianLikelihood, WeightSpace, convert, diagnose
from dnn2gp.inference import GaussNewtonStep, LinearisedMode
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
    settings = {"mean": GaussNewtonStep(), "inference": space}
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, **settings)
    found = diagnose(gp, details=True, num_probes=4000).details
    assert found is not None
    relative = (data + prior).norm() / (data.norm() + prior.norm())
    assert found.relative_gradient == pytest.approx(relative.item(), rel=1e-9)
    gradient = data + prior
    assert found.step_bound == pytest.approx((gradient @ covariance @ gradient).sqrt().item(), rel=1e-8)
    variances = torch.einsum("nkp,pq,nkq->nk", J, covariance, J)
    assert ((J @ (mean - w)).abs() <= found.step_bound * variances.sqrt() * (1 + 1e-9)).all()
    # 4000 probes: the Hutchinson estimate has a relative spread of about sqrt(2 / 4000) in each norm.
    assert found.curvature_gap == pytest.approx((rest.norm() / ggn.norm()).item(), rel=0.1)
    smallest = torch.linalg.eigvalsh(Lam)[:, 1]  # the first is the zero of softmax
    assert found.smallest_noise_precision == pytest.approx(smallest.min().item(), rel=1e-8)
    assert found.spaces_gap < 1e-10


def test_with_sites_at_the_mode_the_gradient_is_that_of_the_network():
    case = problem("categorical", 9, 3)
    J, r, _ = case.parts()
    data, prior = torch.einsum("nkp,nk->p", J, r), case.delta * case.weights
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=LinearisedMode())
    found = diagnose(gp, details=True).details
    assert found is not None
    assert gp.model.relative_gradient() < 1e-6  # that of the linearised network
    relative = (data + prior).norm() / (data.norm() + prior.norm())
    assert found.relative_gradient == pytest.approx(relative.item(), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_network_gets_all_findings(name):
    case = specimen(name)
    report = diagnose(convert(case.module, (case.inputs, case.targets), case.entry.likelihood, 1.0), details=True)
    assert report.details is not None
    assert report.details.curvature_gap is not None
    assert report.details.spaces_gap < 1e-8
    assert {"training data", "leave-one-out", "size", "used", "minimum", "curvature", "spaces"} <= {
        finding.what for finding in report.findings
    }
    frozen = any(not weight.requires_grad for weight in case.module.parameters())
    assert (report.share < 1) == frozen == ("frozen" in str(report))


def test_gradient_features_have_no_hessian():
    case = problem("categorical", 8, 3)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, expansion=Expansion.empirical_fisher)
    report = diagnose(gp, details=True)
    assert report.details is not None
    assert report.details.curvature_gap is None
    assert "GGN: not available" in str(report)


def test_float32_is_no_cause_for_alarm():
    case = problem("gaussian", 20)
    gp = convert(copy.deepcopy(case.module).float(), (case.x.float(), case.y.float()), case.likelihood, case.delta)
    found = diagnose(gp, details=True).details
    assert found is not None
    assert found.spaces_gap < 1e-3


def test_bad_conditioning_shows_as_a_gap_between_the_spaces():
    case = problem("gaussian", 20)
    gp = convert(case.module, (case.x, case.y), GaussianLikelihood(1e-5), 1e-3, inference=FunctionSpace())
    report = diagnose(gp, details=True)
    assert report.details is not None
    assert report.details.spaces_gap > 1e-6
    assert report.verdict != "good"
    assert "conditioned" in next(finding.advice for finding in report.findings if finding.what == "spaces")
