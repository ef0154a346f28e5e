"""Central intervals of y, against scipy's distributions and quadrature."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from torch import Tensor

from dnn2gp import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    CustomLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
    Predictive,
)
from dnn2gp.inference.averaged_predictive import AveragedPredictive
from dnn2gp.support.errors import InputError

from reference.averages import integral

close = torch.testing.assert_close


def one(likelihood, mean: float, variance: float, **settings) -> Predictive:
    m, C = torch.tensor([[mean]], dtype=torch.float64), torch.tensor([[[variance]]], dtype=torch.float64)
    return Predictive(likelihood, (1,), m, torch.zeros_like(m), C, **settings)


def several(likelihood, N: int = 3, K: int = 2, dtype: torch.dtype = torch.float64, kind=Predictive) -> Predictive:
    generator = torch.Generator().manual_seed(0)
    mean, root = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((N, K), (N, K, K)))
    return kind(likelihood, (K,), mean.to(dtype), torch.zeros(N, K, dtype=dtype), root @ root.mT)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian(level: float, dtype: torch.dtype):
    found = several(GaussianLikelihood(torch.tensor([0.1, 2.0])), dtype=dtype)
    std = (found.latent_covariance.diagonal(dim1=1, dim2=2) + torch.tensor([0.1, 2.0]).double().square()).sqrt()
    expected = scipy.stats.norm.interval(level, found.outputs.double().numpy(), std.numpy())
    for own, other in zip(found.interval(level), expected, strict=True):
        assert own.dtype == dtype
        close(own, torch.from_numpy(other).to(dtype), rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)


def test_gaussian_of_several_maps():
    found = several(GaussianLikelihood(0.3), K=4)
    maps = AveragedPredictive(found.likelihood, (2,), found.outputs, found.shift, found.latent_covariance)
    lower, upper = maps.interval(0.9)
    close(lower, maps.mean - scipy.stats.norm.ppf(0.95) * maps.std, rtol=1e-12, atol=1e-13)
    close(upper, maps.mean + scipy.stats.norm.ppf(0.95) * maps.std, rtol=1e-12, atol=1e-13)


def counts_up_to(n: float, mean: float, variance: float) -> float:
    """P(y ≤ n): an integral over log rates, with breaks around the step of the Poisson distribution function."""
    step, width = math.log(n + 1), 1 / math.sqrt(n + 1)
    breaks = [step + c * width for c in (-12, -6, -3, 0, 3, 6, 12)]
    return integral(lambda f: float(scipy.stats.poisson.cdf(n, math.exp(f))), mean, variance, *breaks)


@pytest.mark.parametrize(
    ("mean", "variance"),
    [(0.0, 0.0), (2.3, 0.0), (-3.0, 0.5), (1.0, 1.0), (3.0, 9.0), (5.0, 0.01), (10.0, 0.25), (13.0, 1e-6), (0.0, 25.0)],
)
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_counts(mean: float, variance: float, level: float):
    """The smallest counts whose distribution function reaches the two levels."""
    found = one(PoissonLikelihood(), mean, variance).interval(level)
    for own, tail in zip(found, ((1 - level) / 2, (1 + level) / 2), strict=True):
        count = own.item()
        assert count == int(count)
        if variance == 0:
            assert count == scipy.stats.poisson.ppf(tail, math.exp(mean))
            continue
        assert counts_up_to(count, mean, variance) >= tail
        assert count == 0 or counts_up_to(count - 1, mean, variance) < tail


def test_counts_of_several_outputs():
    found = several(PoissonLikelihood(), N=5, dtype=torch.float32)
    lower, upper = found.interval(0.8)
    for n, k in ((0, 0), (3, 1)):
        own = one(PoissonLikelihood(), found.outputs[n, k].item(), found.latent_covariance[n, k, k].item())
        assert (lower[n, k], upper[n, k]) == tuple(each.item() for each in own.interval(0.8))
    assert lower.dtype == torch.float32


def laplace_noise(f: Tensor, num_samples: int, generator: torch.Generator) -> Tensor:
    uniform = torch.rand((num_samples, *f.shape), generator=generator, dtype=f.dtype) - 0.5
    return f - uniform.sign() * torch.log1p(-2 * uniform.abs())


def test_custom_noise():
    """Draws of y at fixed points: the probabilities beyond each end are right within those of 4096 draws."""
    likelihood = CustomLikelihood(lambda f, y: (f - y).square().add(1).sqrt().sum(), sample=laplace_noise)
    found = one(likelihood, 1.0, 4.0)
    lower, upper = found.interval(0.9)
    assert found.interval(0.9) == (lower, upper)
    for own, tail in ((lower, 0.05), (upper, 0.95)):
        y = own.item()
        below = integral(lambda f, y=y: float(scipy.stats.laplace.cdf(y, f)), 1.0, 4.0, y)
        assert abs(below - tail) < 4 * math.sqrt(0.05 * 0.95 / 4096)
    with pytest.raises(InputError, match="sample"):
        one(CustomLikelihood(lambda f, y: (f - y).square().sum()), 0.0, 1.0).interval()


@pytest.mark.parametrize("likelihood", [CategoricalLikelihood(), BernoulliLikelihood()])
def test_classes_have_no_intervals(likelihood):
    with pytest.raises(InputError, match="probabilities"):
        several(likelihood).interval(0.9)


@pytest.mark.parametrize("level", [0.0, 1.0, 90.0, math.nan])
def test_impossible_levels(level: float):
    with pytest.raises(InputError, match="level"):
        several(GaussianLikelihood(1.0)).interval(level)


def test_unknown_noise():
    found = one(GaussianLikelihood(torch.ones(7, 1)), 0.0, 1.0, noise_known=False)
    with pytest.raises(InputError, match="likelihood"):
        found.interval()
    with pytest.raises(InputError, match="likelihood"):
        found.log_prob(torch.zeros(1, 1, dtype=torch.float64))
