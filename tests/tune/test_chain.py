"""Where tuning by gradient ends: away from its start, in the better of its chains, by the ranking asked for."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm
from torch import nn

from dnn2gp import CategoricalLikelihood, GaussianLikelihood, convert, tune
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.inference.mean import GaussNewtonStep
from dnn2gp.network.data import Data
from dnn2gp.support.errors import DivergedError, EvidenceWarning, InputError
from dnn2gp.tune.fresh import fresh_copy
from dnn2gp.tune.line_search import LineSearch
from dnn2gp.tune.minimise import train_to_minimum
from dnn2gp.tune.prior_choice import PriorChoice

from reference import brute_force


def classes():
    """30 points in the plane whose classes overlap a little."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(30, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] + 0.5 * x[:, 1] + 0.2 * noise > 0).long()


def wave():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 30, dtype=torch.float64)[:, None]
    return x, torch.sin(2 * x) + 0.2 * torch.randn(30, 1, generator=generator, dtype=torch.float64)


def network(inputs=2, width=6, outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def laplace(module, x, y, delta):
    """log p(D|w) − ½ δ wᵀw − ½ log |I + JᵀΛJ/δ| of a softmax network, with dense matrices."""
    J, f, w = brute_force.jacobian(module, x), brute_force.outputs(module, x), brute_force.flat_weights(module)
    p = f.softmax(1)
    ggn = torch.einsum("nkp,nkl,nlq->pq", J, torch.diag_embed(p) - p[:, :, None] * p[:, None], J)
    fit = f.log_softmax(1)[torch.arange(len(y)), y].sum()
    return (fit - 0.5 * delta * w @ w - 0.5 * torch.logdet(torch.eye(len(w)).double() + ggn / delta)).item()


# A start that the evidence at fixed features would return -----------------------------------------------------------


@pytest.mark.slow
def test_tuning_leaves_a_start_from_which_alternating_only_loses():
    """Each round of the alternation has less evidence than the one before; the search finds a maximum."""
    x, y = classes()
    found = tune.gradient(network(), (x, y), CategoricalLikelihood(), 0.1, restarts=0, tolerance=0.05)
    first = [trial.evidence for trial in found.trials[:3]]
    assert first == sorted(first, reverse=True)  # or this tests nothing
    delta = found.best["prior_precision"]
    assert found.converged
    assert delta != 0.1
    assert found.evidence == pytest.approx(laplace(found.network, x, y, delta), abs=1e-6)
    assert found.evidence > found.trials[0].evidence + 0.1
    for change in (0.4, 2.5):
        other = fresh_copy(found.network, 0)
        other.load_state_dict(found.network.state_dict())
        weights = torch.full((len(brute_force.flat_weights(other)),), delta * change, dtype=torch.float64)
        train_to_minimum(other, Data(x, y), CategoricalLikelihood(), weights)
        assert laplace(other, x, y, delta * change) < found.evidence


def test_a_delta_that_did_not_move_is_said():
    x, y = wave()
    with pytest.warns(EvidenceWarning, match="prior_precision=.*rank="):
        found = tune.gradient(network(1, 3, 1), (x, y), GaussianLikelihood(), 2.5, restarts=0, max_rounds=1)
    assert found.best["prior_precision"] == 2.5
    assert any("δ = 2.5" in note and "started" in note for note in found.notes)
    assert not found.converged


def test_a_delta_that_moved_is_not():
    x, y = wave()
    found = tune.gradient(network(1, 3, 1), (x, y), GaussianLikelihood(), restarts=0, tolerance=0.1)
    assert found.best["prior_precision"] != 1.0
    assert not any("started" in note for note in found.notes)


# A second chain -----------------------------------------------------------------------------------------------------


def test_fresh_weights_win_over_a_network_that_cannot_learn():
    """Weights of zero are a saddle point of a tanh network: only the output bias has a gradient there."""
    x, y = wave()
    dead = network(1, 4, 1)
    with torch.no_grad():
        for weight in dead.parameters():
            weight.zero_()
    given = {"max_rounds": 4, "tolerance": 0.5}
    with pytest.warns(EvidenceWarning):
        alone = tune.gradient(dead, (x, y), GaussianLikelihood(), restarts=0, **given)
    found = tune.gradient(dead, (x, y), GaussianLikelihood(), restarts=1, **given)
    assert found.trials[: len(alone.trials)] == alone.trials
    assert found.trials[len(alone.trials)].settings["prior_precision"] == 10.0
    assert found.evidence > alone.evidence + 5
    assert (found.network(x) - y).square().mean() < 0.2 * y.square().mean()
    assert all(bool((weight == 0).all()) for weight in dead.parameters())


def test_a_restart_that_diverges_leaves_the_first_chain():
    x, y = wave()
    calls = []

    def train(module, *given):
        calls.append(given)
        if len(calls) > 2:
            raise DivergedError("loss")
        train_to_minimum(module, *given)

    found = tune.gradient(network(1, 3, 1), (x, y), GaussianLikelihood(), train=train, max_rounds=2, tolerance=1e-3)
    assert len(found.trials) == 2
    assert len(calls) == 3


def test_fresh_copies_keep_everything_but_the_weights():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.arange(8.0))
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
            self.inner[2].weight.requires_grad_(False)

        def forward(self, x):
            return self.inner(x * self.scale)

    torch.manual_seed(0)
    module = Bare()
    module(torch.randn(5, 8))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    one, same, other = fresh_copy(module, 1), fresh_copy(module, 1), fresh_copy(module, 2)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    new = one.state_dict()
    assert all(torch.equal(value, new[name]) for name, value in same.state_dict().items())
    drawn = ["inner.0.weight", "inner.0.bias", "scale"]
    assert all(not torch.equal(new[name], before[name]) for name in drawn)
    assert all(not torch.equal(new[name], other.state_dict()[name]) for name in drawn)
    assert torch.equal(new["scale"].sort().values, before["scale"])
    kept = ["inner.2.weight", "inner.1.running_mean", "inner.1.running_var", "inner.1.num_batches_tracked"]
    assert all(torch.equal(new[name], before[name]) for name in kept)


# Ranking ------------------------------------------------------------------------------------------------------------


def converted(module, x, y, sigma, delta) -> GaussianProcess:
    return convert(module, (x, y), GaussianLikelihood(sigma), delta, mean=GaussNewtonStep())


def test_the_score_of_leave_one_out_is_that_of_refitted_linear_models():
    """The regression on J with one row left out, solved N times; the network is not at a minimum."""
    x, y = wave()
    module, sigma, delta = network(1, 3, 1), 0.3, 0.7
    J, f, w = brute_force.jacobian(module, x)[:, 0], brute_force.outputs(module, x), brute_force.flat_weights(module)
    transformed = J @ w + (y - f)[:, 0]
    expected = 0.0
    for out in range(len(y)):
        kept = torch.arange(len(y)) != out
        precision = J[kept].T @ J[kept] / sigma**2 + delta * torch.eye(len(w)).double()
        mean = torch.linalg.solve(precision, J[kept].T @ transformed[kept] / sigma**2)
        variance = J[out] @ torch.linalg.solve(precision, J[out]) + sigma**2
        expected += norm((J[out] @ mean).item(), variance.sqrt().item()).logpdf(transformed[out].item())
    score = tune.ByLeaveOneOut().score(converted(module, x, y, sigma, delta))
    assert score == pytest.approx(expected, rel=1e-8)


def test_the_cautious_evidence_subtracts_the_gain_of_a_step():
    x, y = wave()
    module, sigma, delta = network(1, 3, 1), 0.3, 0.7
    J, f, w = brute_force.jacobian(module, x)[:, 0], brute_force.outputs(module, x), brute_force.flat_weights(module)
    precision = J.T @ J / sigma**2 + delta * torch.eye(len(w)).double()
    gradient = J.T @ (f - y)[:, 0] / sigma**2 + delta * w
    fit = -0.5 * (f - y).square().sum() / sigma**2 - len(y) * math.log(sigma * math.sqrt(2 * math.pi))
    complexity = 0.5 * (torch.logdet(precision) - len(w) * math.log(delta))
    gain = 0.5 * gradient @ torch.linalg.solve(precision, gradient)
    expected = (fit - 0.5 * delta * w @ w - complexity - gain).item()
    assert tune.ByCautiousEvidence().score(converted(module, x, y, sigma, delta)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_the_best_round_is_the_one_that_ranks_highest():
    x, y = classes()
    for rank in (tune.ByLeaveOneOut(), tune.ByCautiousEvidence()):
        found = tune.gradient(network(), (x, y), CategoricalLikelihood(), rank=rank, restarts=0, tolerance=0.2)
        best = max(found.trials, key=lambda trial: trial.values[rank.name])
        assert found.best == best.settings
        assert rank.score(found.gp) == pytest.approx(best.values[rank.name], rel=1e-9)


def test_a_negative_number_of_restarts_is_refused():
    with pytest.raises(InputError, match="restarts"):
        tune.gradient(network(1, 3, 1), wave(), GaussianLikelihood(), restarts=-1)


# Steps --------------------------------------------------------------------------------------------------------------


def test_a_minimum_stays_one_along_its_line_and_the_evidence_is_largest_there():
    x, y = wave()
    module = network(1, 3, 1)
    choice = PriorChoice.first(module, Data(x, y), GaussianLikelihood(), 1.0, False, False)
    moved = choice.along_minimum(choice.converted(module, Data(x, y)))
    before, after = choice.likelihood.sigma, moved.likelihood.sigma
    torch.testing.assert_close(choice.precision * before**2, moved.precision * after**2)
    w, misfit = brute_force.flat_weights(module), (y - brute_force.outputs(module, x)).square().sum()
    torch.testing.assert_close(after**2, (misfit + moved.precision * after**2 * w @ w) / len(y))


@pytest.mark.parametrize("target", [1.7, -4.2, 0.0])
def test_a_line_search_finds_a_maximum(target):
    line, place = LineSearch(1.0), 0.0
    while line.length >= 0.01:
        step = place + line.step
        better = abs(step - target) < abs(place - target)
        place = step if better else place
        line.learn(better)
    assert place == pytest.approx(target, abs=0.03)
