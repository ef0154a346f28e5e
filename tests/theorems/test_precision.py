"""A float32 network is right to five digits, also where a float32 kernel would not be."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dnn2gp import FunctionSpace, GaussianLikelihood, WeightSpace, convert

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
SIGMA, DELTA = 0.1, 0.06


@pytest.fixture(scope="module")
def case():
    """Small noise, small δ: the entries of SᵀKS go to 1e6, the smallest eigenvalue of I + SᵀKS is 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-3, 3, 60)[:, None]
    y = torch.sin(2 * x) + SIGMA * torch.randn(60, 1, generator=generator)
    network = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    exact = copy.deepcopy(network).double()
    x_test = torch.linspace(-4, 4, 50)[:, None]
    gp = convert(exact, (x.double(), y.double()), GaussianLikelihood(SIGMA), DELTA, inference=WeightSpace())
    return network, x, y, x_test, gp


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
def test_float32_network_has_the_float64_answers(case, space):
    network, x, y, x_test, exact = case
    gp = convert(network, (x, y), GaussianLikelihood(SIGMA), DELTA, inference=space)
    found, expected = gp.predict(x_test), exact.predict(x_test.double())
    assert found.epistemic.dtype == torch.float32
    torch.testing.assert_close(found.epistemic.double(), expected.epistemic, rtol=2e-5, atol=0)
    # Here, far from a minimum, the step to the mean is long; it is right on the scale of what is known.
    assert ((found.mean.double() - expected.mean) / expected.epistemic.sqrt()).abs().max() < 1e-2
    assert gp.evidence().complexity == pytest.approx(exact.evidence().complexity, rel=1e-6)


def test_a_float32_kernel_would_miss_by_far(case):
    """What is not done here, and why: the same float32 Jacobians, with products in float32. Half the noise, so that
    the error does not hang on how a processor rounds."""
    sigma = SIGMA / 2
    network, x, y, x_test, _ = case
    exact = convert(copy.deepcopy(network).double(), (x.double(), y.double()), GaussianLikelihood(sigma), DELTA)
    features = convert(network, (x, y), GaussianLikelihood(sigma), DELTA).features
    J, J_test = features.jacobian(x)[:, 0], features.jacobian(x_test)[:, 0]
    kernel, cross = (J @ J.T / DELTA).double(), (J_test @ J.T / DELTA).double()
    A = torch.eye(60, dtype=torch.float64) + kernel / sigma**2
    explained = (cross * torch.linalg.solve(A, cross.T / sigma**2).T).sum(1)
    variances = ((J_test**2).sum(1) / DELTA).double() - explained
    expected = exact.predict(x_test.double()).epistemic[:, 0]
    assert ((variances - expected) / expected).abs().median() > 0.05
