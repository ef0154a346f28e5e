"""convert(..., prior_precision="evidence"): what a newcomer gets."""

from __future__ import annotations

import copy
import functools
import warnings

import pytest
import torch
from torch import nn

from dnn2gp import (
    CategoricalLikelihood,
    Diagonal,
    FunctionSpace,
    GaussianLikelihood,
    Kronecker,
    WeightSpace,
    convert,
    load,
    save,
)
from dnn2gp.inference.mean import GaussNewtonStep
from dnn2gp.support.errors import EvidenceWarning, InputError, NotAMinimumWarning

from problems import problem
from reference import brute_force

quiet = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


def sine(noise=0.2, count=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-3, 3, count, dtype=torch.float64)[:, None]
    return x, torch.sin(2 * x) + noise * torch.randn(count, 1, generator=generator, dtype=torch.float64)


@functools.cache
def trained_once():
    """By Adam on the mean squared error, without a thought of priors."""
    x, y = sine()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1)).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(1500):
        optimizer.zero_grad()
        (network(x) - y).square().mean().backward()
        optimizer.step()
    return network


def trained():
    """A network that fits the sine."""
    return copy.deepcopy(trained_once())


@quiet
def test_delta_and_sigma_in_one_call():
    x, y = sine()
    gp = convert(trained(), (x, y), GaussianLikelihood())
    assert gp.likelihood.sigma.item() == pytest.approx(0.2, rel=0.2)
    assert gp.tuning.best == {
        "prior_precision": gp.prior.precision.values[0].item(),
        "sigma": gp.likelihood.sigma.item(),
    }
    assert gp.tuning.evidence == pytest.approx(gp.evidence().value, rel=1e-9)


@pytest.mark.slow
@quiet
@pytest.mark.parametrize("kind", ["gaussian", "categorical", "bernoulli", "poisson"])
@pytest.mark.parametrize("examples", [6, 40])
def test_no_other_delta_has_a_larger_evidence(kind, examples):
    """Against GPs that are converted with each δ."""
    case = problem(kind, examples)
    data = (case.x, case.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvidenceWarning)
        gp = convert(case.module, data, case.likelihood, mean=GaussNewtonStep())
    best = gp.tuning.best["prior_precision"]
    for factor in (1e-3, 0.1, 0.8, 1.25, 10.0, 1e3):
        other = convert(case.module, data, case.likelihood, best * factor, mean=GaussNewtonStep())
        assert other.evidence().value <= gp.evidence().value + 1e-9


@quiet
def test_the_curve_is_kept_and_is_that_of_gps_with_each_setting():
    x, y = sine()
    network = trained()
    gp = convert(network, (x, y), GaussianLikelihood())
    delta, sigma = gp.tuning.curve("prior_precision"), gp.tuning.curve("sigma")
    assert delta.best == pytest.approx(gp.tuning.best["prior_precision"])
    for position in (0, 20, 60):
        twin = convert(network, (x, y), GaussianLikelihood(gp.tuning.best["sigma"]), delta.settings[position])
        assert delta.mean[position] == pytest.approx(twin.evidence().value, rel=1e-8)
        twin = convert(network, (x, y), GaussianLikelihood(sigma.settings[position]), gp.tuning.best["prior_precision"])
        assert sigma.mean[position] == pytest.approx(twin.evidence().value, rel=1e-8)


@quiet
def test_what_is_given_stays():
    x, y = sine()
    network = trained()
    noise = convert(network, (x, y), GaussianLikelihood(0.5))
    assert noise.likelihood.sigma.item() == 0.5
    assert list(noise.tuning.best) == ["prior_precision"]
    prior = convert(network, (x, y), GaussianLikelihood(), 2.0)
    assert prior.prior.precision.values.unique().tolist() == [2.0]
    assert list(prior.tuning.best) == ["sigma"]
    layers = convert(network, (x, y), GaussianLikelihood(), {"0": 2.0, "2": 0.5})
    assert layers.prior.precision.values.unique().tolist() == [0.5, 2.0]
    assert convert(network, (x, y), GaussianLikelihood(0.5), 2.0).tuning is None


@quiet
@pytest.mark.parametrize("choice", [{"inference": WeightSpace()}, {"inference": FunctionSpace()}])
def test_either_space_is_tuned_to_the_same(choice):
    x, y = sine()
    network = trained()
    assert convert(network, (x, y), GaussianLikelihood(), **choice).tuning.best == pytest.approx(
        convert(network, (x, y), GaussianLikelihood()).tuning.best
    )


@quiet
@pytest.mark.parametrize("choice", [{"structure": Diagonal()}, {"structure": Kronecker()}, {"subset": "last layer"}])
def test_structures_and_subsets_have_their_own_best(choice):
    x, y = sine()
    network = trained()
    gp = convert(network, (x, y), GaussianLikelihood(), **choice)
    sigma, delta = gp.tuning.best["sigma"], gp.tuning.best["prior_precision"]
    for factor in (0.7, 1.4):
        other = convert(network, (x, y), GaussianLikelihood(sigma), delta * factor, **choice)
        assert other.evidence().value < gp.evidence().value
        other = convert(network, (x, y), GaussianLikelihood(sigma * factor), delta, **choice)
        assert other.evidence().value < gp.evidence().value


@quiet
def test_float32_is_tuned_to_nearly_the_same():
    x, y = sine()
    network = trained()
    wide = convert(network, (x, y), GaussianLikelihood()).tuning
    narrow = convert(network.float(), (x.float(), y.float()), GaussianLikelihood()).tuning
    assert narrow.best == pytest.approx(wide.best, rel=0.02)
    assert narrow.evidence == pytest.approx(wide.evidence, abs=0.05)


def test_a_training_with_another_prior_is_named():
    x, y = sine()
    with pytest.warns(NotAMinimumWarning, match=r"δ = .*, σ = .*evidence.*tune.gradient"):
        convert(trained(), (x, y), GaussianLikelihood())


def test_underfit_is_named():
    """A network that was never trained, on targets that have nothing to do with its inputs."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(80, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    with pytest.warns(EvidenceWarning, match="Underfit|no maximum in δ"):
        gp = convert(network, (x, y), GaussianLikelihood())
    assert gp.tuning.notes


def test_a_perfect_fit_is_named():
    """Targets that are the network's own outputs have no noise to find."""
    x, _ = sine(count=20)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    with pytest.warns(EvidenceWarning, match="no maximum in σ"):
        gp = convert(network, (x, brute_force.outputs(network, x)), GaussianLikelihood())
    assert not gp.tuning.converged


@quiet
def test_the_tuning_is_saved_with_the_gp(tmp_path):
    x, y = sine()
    network = trained()
    gp = convert(network, (x, y), GaussianLikelihood())
    save(gp, tmp_path / "gp.safetensors")
    again = load(tmp_path / "gp.safetensors", network)
    assert again.tuning == gp.tuning
    assert torch.equal(again.predict(x).variance, gp.predict(x).variance)


def test_an_open_sigma_cannot_be_computed_with():
    with pytest.raises(InputError, match=r"has no noise σ yet"):
        GaussianLikelihood().loss(torch.zeros(2, 1), torch.zeros(2, 1))


@quiet
def test_labels_out_of_range_are_still_refused():
    case = problem("categorical", 6)
    with pytest.raises(InputError, match="label"):
        convert(case.module, (case.x, case.y + 5), CategoricalLikelihood())
