"""Classifiers in float32 with a small δ: the variance of a constant in all logits, 1/δ, must not cover the rest."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dnn2gp import CategoricalLikelihood, FunctionSpace, WeightSpace, convert
from dnn2gp.inference import GaussNewtonStep, NetworkOutput
from dnn2gp.support.errors import IllConditionedError

from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    labels = torch.arange(60) % 3
    x = torch.randn(60, 2) + 1.5 * torch.eye(3)[labels][:, :2]
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    optimizer = torch.optim.LBFGS(module.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        penalty = sum(weight.square().sum() for weight in module.parameters())
        loss = nn.functional.cross_entropy(module(x), labels, reduction="sum") + 0.05 * penalty
        loss.backward()
        return loss

    optimizer.step(closure)
    return module, x, labels


def exact_epistemic(module, x, inputs, delta):
    """diag(Λ J Σ̃ Jᵀ Λ) in float64, with no code of ours."""
    wide = copy.deepcopy(module).double()
    J, p = brute_force.jacobian(wide, x.double()), brute_force.outputs(wide, x.double()).softmax(-1)
    Lam = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    precision = torch.einsum("nkp,nkl,nlq->pq", J, Lam, J) + delta * torch.eye(J.shape[2], dtype=torch.float64)
    test, q = brute_force.jacobian(wide, inputs.double()), brute_force.outputs(wide, inputs.double()).softmax(-1)
    slope = (torch.diag_embed(q) - q.unsqueeze(-1) * q.unsqueeze(-2)) @ test
    return (slope @ torch.linalg.solve(precision, slope.mT)).diagonal(dim1=1, dim2=2)


@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace()], ids=repr)
@pytest.mark.parametrize("delta", [1e-4, 1e-6, 1e-8])
def test_epistemic(trained, inference, delta):
    module, x, labels = trained
    inputs = torch.randn(20, 2, generator=torch.Generator().manual_seed(1))
    settings = {"inference": inference, "mean": GaussNewtonStep()}
    prediction = convert(module, (x, labels), CategoricalLikelihood(), delta, **settings).predict(inputs)
    expected = exact_epistemic(module, x, inputs, delta).float()
    torch.testing.assert_close(prediction.epistemic, expected, rtol=2e-3, atol=1e-9)
    for result in (prediction.std, prediction.probit(), prediction.monte_carlo(50)):
        assert result.isfinite().all()
        assert result.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("delta", [1e-16, 1e-18, 1e-20])
def test_a_prior_precision_that_leaves_no_digits(trained, dtype, delta):
    module, x, labels = copy.deepcopy(trained[0]).to(dtype), trained[1].to(dtype), trained[2]
    gp = convert(module, (x, labels), CategoricalLikelihood(), delta, mean=NetworkOutput())
    with pytest.raises(IllConditionedError, match=r"variance of the logits at input 0.*Use a larger prior precision"):
        gp.predict(x)
