"""Predictions of S maps: every answer is the average over them, and samples come from one of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dnn2gp import CategoricalLikelihood, GaussianLikelihood
from dnn2gp.averaged_predictive import AveragedPredictive


def averaged(likelihood, S: int = 2, N: int = 3, K: int = 2) -> tuple[AveragedPredictive, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    latent = 2 * torch.randn(N, S * K, generator=generator, dtype=torch.float64)
    root = torch.randn(N, S * K, S * K, generator=generator, dtype=torch.float64)
    covariance = root @ root.mT
    return AveragedPredictive(likelihood, (K,), latent, torch.zeros_like(latent), covariance), latent, covariance


def test_averages_of_a_nonlinear_link():
    found, latent, _ = averaged(CategoricalLikelihood())
    expected = (latent[:, :2].softmax(-1) + latent[:, 2:].softmax(-1)) / 2
    torch.testing.assert_close(found.delta(), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(
        found.probit(), (found.maps[0].probit() + found.maps[1].probit()) / 2, rtol=1e-14, atol=0
    )
    close = found.monte_carlo(40_000, torch.Generator().manual_seed(1))
    each = [part.monte_carlo(40_000, torch.Generator().manual_seed(2)) for part in found.maps]
    assert (close - (each[0] + each[1]) / 2).abs().max() < 5 * 0.5 / 200  # probabilities vary by less than 0.5


def test_samples_come_from_the_maps_in_equal_shares():
    """E f = the average of the means; E f² has the spread between the maps too."""
    found, latent, covariance = averaged(GaussianLikelihood(0.3))
    draws = found.sample_latent(40_000, torch.Generator().manual_seed(0))
    means, variances = latent.unflatten(1, (2, 2)), covariance.diagonal(dim1=1, dim2=2).unflatten(1, (2, 2))
    second = (means**2 + variances).mean(1)
    scale = second.sqrt() / 200
    assert ((draws.mean(0) - means.mean(1)).abs() < 5 * scale).all()
    spread = (draws**2).var(0).sqrt() / 200
    assert (((draws**2).mean(0) - second).abs() < 5 * spread).all()
    labels = found.sample(40_000, torch.Generator().manual_seed(0))
    assert labels.shape == (40_000, 3, 2)
    assert ((labels.var(0) - (second - means.mean(1) ** 2 + 0.09)).abs() < 5 * spread + 0.01).all()


@pytest.mark.parametrize("S", [1, 3])
def test_number_of_maps(S: int):
    found, _, _ = averaged(CategoricalLikelihood(), S=S)
    assert len(found.maps) == S
    assert repr(found) == f"AveragedPredictive({S} maps, 3 inputs, outputs of shape (2,))"
    assert found.sample(7).shape == (7, 3)
