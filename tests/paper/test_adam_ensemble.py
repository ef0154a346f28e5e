"""Adam for many networks at once: against torch's optimizer and scheduler, one network at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp import BernoulliLikelihood, GaussianLikelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.paper import adam_ensemble
from dnn2gp.support.errors import InputError
from dnn2gp.tune.ensemble import Ensemble, initial_weights

EPOCHS, RATE = 100, 0.3


def problem(depth: int = 2) -> tuple[Ensemble, torch.Tensor]:
    """Three members of eight examples."""
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(3, 8, size, generator=generator, dtype=torch.float64) for size in (2, 1))
    delta = torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)

    def build() -> nn.Module:
        return mlp(2, 1, width=4, depth=depth).double()

    return Ensemble(build(), x, y, GaussianLikelihood(1.0), delta), initial_weights(build, [0, 1, 2])


def by_torch(ensemble: Ensemble, first: torch.Tensor, member: int) -> torch.Tensor:
    network = ensemble.network
    nn.utils.vector_to_parameters(first[member].clone(), network.parameters())
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        penalty = sum(weight.square().sum() for weight in network.parameters())
        fit = 0.5 * (network(ensemble.inputs[member]) - ensemble.targets[member]).square().sum()
        loss = fit + 0.5 * ensemble.prior_precision[member, 0] * penalty
        loss.backward()
        optimizer.step()
        plateau.step(loss.item())
    assert optimizer.param_groups[0]["lr"] < RATE  # it fell
    return nn.utils.parameters_to_vector(network.parameters()).detach()


@pytest.mark.parametrize(("depth", "units"), [(1, 2**19), (2, 1)])
def test_steps_are_those_of_torch(depth, units, monkeypatch):
    """However many members are computed at a time."""
    monkeypatch.setattr(adam_ensemble, "_UNITS", units)
    ensemble, first = problem(depth)
    start = first.clone()
    found = adam_ensemble.adam(ensemble, first, lr=RATE, epochs=EPOCHS, factor=0.5, patience=3, dtype=torch.float64)
    assert torch.equal(first, start)
    for member in range(3):
        expected = by_torch(ensemble, first, member)
        torch.testing.assert_close(found[member], expected, rtol=1e-8, atol=1e-8)


def test_float32_is_near_and_comes_back_in_float64():
    ensemble, first = problem()
    narrow, wide = (
        adam_ensemble.adam(ensemble, first, lr=0.05, epochs=20, dtype=dtype) for dtype in (torch.float32, torch.float64)
    )
    assert narrow.dtype == torch.float64
    assert not torch.equal(narrow, wide)
    torch.testing.assert_close(narrow, wide, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("likelihood", [GaussianLikelihood(0.5), BernoulliLikelihood()])
def test_only_noise_1(likelihood):
    ensemble, first = problem()
    other = Ensemble(ensemble.network, ensemble.inputs, (ensemble.targets > 0).double(), likelihood, torch.ones(3))
    with pytest.raises(InputError, match=r"expected an ensemble with GaussianLikelihood\(1\)"):
        adam_ensemble.adam(other, first, lr=0.05, epochs=20)
