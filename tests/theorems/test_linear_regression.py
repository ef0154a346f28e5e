"""A linear network with Gaussian noise is Bayesian linear regression, and scikit-learn's dot-product GP."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from torch import nn

from dnn2gp import FunctionSpace, GaussianLikelihood, WeightSpace, convert

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
SIGMA, DELTA = 0.3, 2.0


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64) + 0.3
    y = y + SIGMA * torch.randn(12, generator=generator, dtype=torch.float64)
    return x, y, torch.randn(5, 4, generator=generator, dtype=torch.float64)


def gp_of(x, y, space, weights=None):
    network = nn.Linear(4, 1).double()  # at random weights: the answer must not depend on them
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        network.weight.copy_(torch.randn(1, 4, generator=generator, dtype=torch.float64))
        network.bias.copy_(torch.randn(1, generator=generator, dtype=torch.float64))
    return convert(network, (x, y), GaussianLikelihood(SIGMA), DELTA, inference=space)


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
def test_is_exact_bayesian_linear_regression(data, space):
    x, y, x_test = (part.numpy() for part in data)
    gp = gp_of(*data[:2], space)
    design, design_test = np.c_[x, np.ones(12)], np.c_[x_test, np.ones(5)]
    covariance = np.linalg.inv(design.T @ design / SIGMA**2 + DELTA * np.eye(5))
    mean = covariance @ design.T @ y / SIGMA**2
    prediction = gp.predict(data[2])
    np.testing.assert_allclose(gp.inference.mean.numpy(), mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(prediction.mean[:, 0].numpy(), design_test @ mean, rtol=1e-9)
    np.testing.assert_allclose(gp.posterior.precision.covariance().numpy(), covariance, rtol=1e-9, atol=1e-12)
    variance = np.einsum("np,pq,nq->n", design_test, covariance, design_test)
    np.testing.assert_allclose(prediction.epistemic[:, 0].numpy(), variance, rtol=1e-9)
    np.testing.assert_allclose(prediction.variance[:, 0].numpy(), variance + SIGMA**2, rtol=1e-9)


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()], ids=repr)
def test_is_scikit_learns_gp_with_a_dot_product_kernel(data, space):
    x, y, x_test = (part.numpy() for part in data)
    kernel = ConstantKernel(1 / DELTA, "fixed") * DotProduct(1.0, "fixed")
    peer = GaussianProcessRegressor(kernel, alpha=SIGMA**2, optimizer=None).fit(x, y)
    mean, covariance = peer.predict(x_test, return_cov=True)
    gp = gp_of(*data[:2], space)
    np.testing.assert_allclose(gp.predict(data[2]).mean[:, 0].numpy(), mean, rtol=1e-9)
    np.testing.assert_allclose(gp.mean(data[2])[:, 0].numpy(), mean, rtol=1e-9)  # f = Jw: the two means are one
    np.testing.assert_allclose(gp.covariance(data[2])[:, 0, :, 0].numpy(), covariance, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(gp.kernel.full(data[2])[:, 0, :, 0].numpy(), kernel(x_test), rtol=1e-12)
    assert gp.evidence().value == pytest.approx(peer.log_marginal_likelihood_value_, rel=1e-10)
