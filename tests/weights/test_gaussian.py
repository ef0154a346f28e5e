"""The Gaussian over weights against torch.distributions, with every pair of structures."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from dnn2gp.support.errors import InputError
from dnn2gp.weights import DensePrecision, DiagonalPrecision, Gaussian

SIZE = 5


def make(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + torch.eye(SIZE, dtype=torch.float64)
    mean = torch.randn(SIZE, generator=generator, dtype=torch.float64)
    if kind is DiagonalPrecision:
        matrix = torch.diag(matrix.diagonal())
        return Gaussian(mean, DiagonalPrecision(matrix.diagonal())), MultivariateNormal(mean, precision_matrix=matrix)
    return Gaussian(mean, DensePrecision(matrix)), MultivariateNormal(mean, precision_matrix=matrix)


KINDS = pytest.mark.parametrize("kind", [DensePrecision, DiagonalPrecision])


@KINDS
def test_density_and_moments(kind):
    ours, peer = make(kind, 0)
    w = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    torch.testing.assert_close(ours.log_prob(w), peer.log_prob(w), rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.variances(), peer.variance, rtol=1e-12, atol=0)
    natural, precision = ours.natural_parameters()
    torch.testing.assert_close(natural, peer.precision_matrix @ peer.mean, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(precision.dense(), peer.precision_matrix, rtol=1e-11, atol=1e-12)


@KINDS
@pytest.mark.parametrize("other", [DensePrecision, DiagonalPrecision])
def test_kl(kind, other):
    (a, peer_a), (b, peer_b) = make(kind, 0), make(other, 1)
    torch.testing.assert_close(a.kl(b), kl_divergence(peer_a, peer_b), rtol=1e-11, atol=0)
    torch.testing.assert_close(a.kl(a), torch.tensor(0.0, dtype=torch.float64), rtol=0, atol=1e-12)


@KINDS
def test_samples_have_the_moments_and_leave_the_global_generator_alone(kind):
    ours, peer = make(kind, 0)
    count = 50_000
    state = torch.get_rng_state()
    samples = ours.sample(count, torch.Generator().manual_seed(3))
    assert not torch.equal(ours.sample(2), ours.sample(2))  # a fresh seed each time
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(samples, ours.sample(count, torch.Generator().manual_seed(3)))
    covariance = peer.covariance_matrix
    assert ((samples.mean(0) - peer.mean) / (covariance.diagonal() / count).sqrt()).abs().max() < 4.5
    spread = ((covariance.diagonal()[:, None] * covariance.diagonal() + covariance**2) / count).sqrt()
    assert ((torch.cov(samples.T) - covariance) / spread).abs().max() < 4.5


def test_the_prior_has_mean_zero():
    prior = Gaussian.prior(torch.tensor([1.0, 4.0]))
    assert torch.equal(prior.mean, torch.zeros(2))
    assert torch.equal(prior.variances(), torch.tensor([1.0, 0.25]))


def test_sizes_must_agree():
    with pytest.raises(InputError, match="mean of 3 weights but a precision of 2"):
        Gaussian(torch.zeros(3), DiagonalPrecision(torch.ones(2)))
