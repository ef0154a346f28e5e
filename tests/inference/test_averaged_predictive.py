"""Predictions of S maps: every answer is that of their average."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dnn2gp import CategoricalLikelihood, GaussianLikelihood
from dnn2gp.inference.averaged_predictive import AveragedPredictive


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


@pytest.mark.slow
def test_samples_are_averages_of_maps_drawn_together():
    """Mean and covariance of the samples are those that the prediction states."""
    found, latent, covariance = averaged(GaussianLikelihood(0.3))
    draws = found.sample_latent(40_000, torch.Generator().manual_seed(0))
    halves = torch.cat([torch.eye(2), torch.eye(2)], 1).double() / 2
    mean, spread = latent @ halves.T, halves @ covariance @ halves.T
    sizes = spread.diagonal(dim1=1, dim2=2).sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * sizes / 200).all()
    centred = draws - draws.mean(0)
    seen = torch.einsum("snk,snl->nkl", centred, centred) / len(draws)
    assert ((seen - spread).abs() < 5 * 2**0.5 * sizes.unsqueeze(1) * sizes.unsqueeze(2) / 200).all()
    torch.testing.assert_close(found.epistemic_covariance, spread, rtol=1e-12, atol=1e-13)
    labels = found.sample(40_000, torch.Generator().manual_seed(0))
    assert labels.shape == (40_000, 3, 2)
    assert ((labels.var(0) - found.variance).abs() < 5 * 2**0.5 * found.variance / 200).all()


@pytest.mark.parametrize("S", [1, 3])
def test_number_of_maps(S: int):
    found, _, _ = averaged(CategoricalLikelihood(), S=S)
    assert len(found.maps) == S
    assert repr(found) == f"AveragedPredictive({S} maps, 3 inputs, outputs of shape (2,))"
    assert found.sample(7).shape == (7, 3)
