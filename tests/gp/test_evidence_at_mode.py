"""ByEvidence: δ by the evidence at the weights, or at the mode of the linearised network, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dnn2gp import ByEvidence, CategoricalLikelihood, GaussianLikelihood, LinearisedMode, NetworkOutput, convert
from dnn2gp.gp.evidence_at_mode import normalised_precision

from problems import problem
from reference import brute_force, linearised
from reference import likelihoods as oracle


def _evidence(case, delta: float) -> float:
    f, J = brute_force.outputs(case.module, case.x), brute_force.jacobian(case.module, case.x)
    every = torch.full_like(case.weights, delta)
    return linearised.evidence(J, f, case.weights, case.y, case.loss, oracle.categorical_log_prob, every)


def test_the_evidence_at_the_mode_is_largest_at_the_chosen_delta():
    case = problem("categorical", 20, outputs=3)
    gp = convert(case.module, (case.x, case.y), case.likelihood, ByEvidence(at=LinearisedMode()), mean=LinearisedMode())
    delta = gp.tuning.best["prior_precision"]
    assert gp.tuning.evidence == pytest.approx(_evidence(case, delta), rel=1e-6)
    assert gp.evidence().laplace == pytest.approx(gp.tuning.evidence, rel=1e-6)
    others = [_evidence(case, delta * factor) for factor in np.geomspace(0.05, 20, 9)]
    assert max(others) <= gp.tuning.evidence + 1e-4


def test_the_two_evidences_have_names():
    case = problem("categorical", 20, outputs=3)
    data = case.x, case.y
    by_default = convert(case.module, data, case.likelihood, mean=NetworkOutput())
    named = convert(case.module, data, case.likelihood, ByEvidence(at=NetworkOutput()), mean=NetworkOutput())
    at_mode = convert(case.module, data, case.likelihood, ByEvidence(at=LinearisedMode()), mean=NetworkOutput())
    assert named.tuning.best == by_default.tuning.best
    assert at_mode.tuning.best != by_default.tuning.best


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
def test_for_a_regression_the_mode_is_the_default():
    case = problem("gaussian", 20)
    data = case.x, case.y
    default = convert(case.module, data, GaussianLikelihood())
    at_mode = convert(case.module, data, GaussianLikelihood(), ByEvidence(at=LinearisedMode()))
    at_weights = convert(case.module, data, GaussianLikelihood(), ByEvidence(at=NetworkOutput()))
    assert at_mode.tuning.best == default.tuning.best
    assert at_weights.tuning.best != default.tuning.best


def _normalised(scale: float) -> nn.Module:
    """The scale of the first weights does not matter: a LayerNorm without ε follows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Linear(2, 6, bias=False), nn.LayerNorm(6, eps=0.0, elementwise_affine=False), nn.Tanh(), nn.Linear(6, 3)
        ).double()
    with torch.no_grad():
        module[0].weight.mul_(scale)
    return module


def test_the_scale_of_normalised_weights_does_not_matter():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (30,), generator=generator)
    found = [
        convert(_normalised(scale), (x, y), CategoricalLikelihood(), ByEvidence(at=LinearisedMode()))
        for scale in (1.0, 7.0)
    ]
    assert found[1].tuning.evidence == pytest.approx(found[0].tuning.evidence, rel=1e-8)
    assert found[1].tuning.best["prior_precision"] == pytest.approx(found[0].tuning.best["prior_precision"], rel=1e-6)
    unit = normalised_precision(found[1].model.expansion, found[1].network.layout)
    weight = _normalised(7.0)[0].weight
    torch.testing.assert_close(unit[:12], torch.full((12,), (12 / weight.square().sum()).item(), dtype=torch.float64))
    assert torch.equal(unit[12:], torch.ones_like(unit[12:]))
