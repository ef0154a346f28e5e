"""tune.gradient and tune.WhileTraining: δ and σ in turns with the training."""

from __future__ import annotations

import copy

import pytest
import torch
from sklearn.datasets import make_friedman1
from torch import nn

from dnn2gp import CategoricalLikelihood, GaussianLikelihood, convert, tune
from dnn2gp.support.errors import DivergedError, EvidenceWarning, InputError
from dnn2gp.tune.minimise import train_to_minimum

from reference import brute_force


def data(outputs=1):
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-3, 3, 40, dtype=torch.float64)[:, None]
    noise = torch.randn(40, outputs, generator=generator, dtype=torch.float64)
    return x, torch.sin(1.5 * x) + torch.tensor([0.1, 0.4], dtype=torch.float64)[:outputs] * noise


def network(outputs=1, width=4):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def test_it_ends_where_mackays_equations_hold_at_a_minimum():
    """δ = γ/wᵀw and σ² = ‖y − f‖²/(N − γ), γ by brute force; the network that came in is as it was."""
    x, y = data()
    mine = network()
    before = copy.deepcopy(mine.state_dict())
    minima = []

    def train(module, *given):
        train_to_minimum(module, *given)
        minima.append(brute_force.flat_weights(module))

    found = tune.gradient(mine, (x, y), GaussianLikelihood(), train=train, tolerance=1e-4, max_rounds=100)
    assert found.converged
    assert len(minima) == len(found.trials)
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
    last = found.trials[-1]
    assert last.values["relative_gradient"] < 1e-4
    delta, sigma = last.settings["prior_precision"], last.settings["sigma"]
    tuned = brute_force.with_weights(mine, minima[-1])
    J = brute_force.jacobian(tuned, x).flatten(0, 1)
    values = torch.linalg.eigvalsh(J.T @ J / sigma**2)
    gamma = (values / (values + delta)).sum()
    weights, misfit = minima[-1], (y - brute_force.outputs(tuned, x)).square().sum()
    assert delta == pytest.approx((gamma / weights.square().sum()).item(), rel=1e-3)
    assert sigma**2 == pytest.approx((misfit / (len(x) - gamma)).item(), rel=1e-3)
    assert 0.05 < sigma < 0.2


def test_the_gp_and_the_network_are_those_of_the_best_round():
    x, y = data()
    found = tune.gradient(network(), (x, y), GaussianLikelihood())
    assert found.evidence >= max(t.evidence for t in found.trials if t.values["relative_gradient"] < 1e-3) - 1e-6
    again = convert(found.network, (x, y), GaussianLikelihood(found.best["sigma"]), found.best["prior_precision"])
    assert again.evidence().value == pytest.approx(found.evidence, rel=1e-9)
    torch.testing.assert_close(found.gp.predict(x).mean, again.predict(x).mean)
    assert found.evidence > found.trials[0].evidence


@pytest.mark.slow
def test_more_weights_than_data_do_not_run_away_to_no_noise():
    """At fixed features the evidence asks for less and less noise while it falls: steps become shorter instead."""
    x, y = make_friedman1(40, n_features=5, noise=1.0, random_state=0)
    x, y = torch.tensor((x - x.mean(0)) / x.std(0)), torch.tensor((y - y.mean()) / y.std())[:, None]
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    found = tune.gradient(wide, (x, y), GaussianLikelihood(), restarts=0, max_rounds=40, tolerance=0.05)
    assert found.converged
    assert found.best["sigma"] > 0.15
    assert "steps were shortened" in str(found)
    values = [trial.evidence for trial in found.trials]
    lost = next(place for place in range(1, len(values)) if values[place] < max(values[:place]) - 1)
    assert found.trials[lost + 1].settings["sigma"] > found.trials[lost].settings["sigma"]
    assert found.evidence > max(values[: lost + 1])


@pytest.mark.slow
def test_targets_far_from_zero_or_of_another_scale_are_said():
    """A first round whose minimum is none to speak of is not taken for the best; what was not learned is said."""
    x, y = data()
    with pytest.warns(EvidenceWarning):
        far = tune.gradient(network(width=8), (x, y + 1000), GaussianLikelihood(), max_rounds=3)
    assert far.best != far.trials[0].settings
    assert not far.converged
    with pytest.warns(EvidenceWarning, match=r"Underfit|no maximum in δ|reach a minimum"):
        tune.gradient(network(width=8), (x, 1e6 * y), GaussianLikelihood(), max_rounds=4)


def test_a_sigma_that_is_given_stays():
    x, y = data()
    found = tune.gradient(network(), (x, y), GaussianLikelihood(0.25), max_rounds=40)
    assert list(found.best) == ["prior_precision"]
    assert found.gp.likelihood.sigma.item() == 0.25


@pytest.mark.slow
def test_layers_and_outputs_of_their_own():
    x, y = data(outputs=2)
    one = tune.gradient(network(2), (x, y), GaussianLikelihood(), max_rounds=60, tolerance=0.05)
    many = tune.gradient(
        network(2), (x, y), GaussianLikelihood(), per_layer=True, per_output=True, max_rounds=60, tolerance=0.05
    )
    assert list(many.best) == ["prior_precision[0]", "prior_precision[2]", "sigma[0]", "sigma[1]"]
    assert many.best["sigma[0]"] == pytest.approx(0.1, rel=0.5)
    assert many.best["sigma[1]"] == pytest.approx(0.4, rel=0.5)
    assert many.evidence > one.evidence + 10  # the outputs' noises differ by a factor of four


def test_targets_of_one_axis_are_those_of_one_column():
    x, y = data()
    one, other = (
        tune.gradient(network(), (x, own), GaussianLikelihood(), max_rounds=2, tolerance=5.0) for own in (y, y[:, 0])
    )
    assert one.evidence == pytest.approx(other.evidence, rel=1e-9)


@pytest.mark.slow
def test_classes():
    x, y = data()
    found = tune.gradient(
        network(2, 3), (x, (y[:, 0] > 0).long()), CategoricalLikelihood(), max_rounds=60, tolerance=0.05
    )
    assert found.evidence > found.trials[0].evidence
    assert list(found.best) == ["prior_precision"]


def test_a_training_of_ones_own():
    x, y = data()
    calls = []

    def train(module, training, likelihood, delta):
        calls.append(delta)
        optimizer = torch.optim.LBFGS(module.parameters(), max_iter=200, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            penalty = 0.5 * sum(weight.square().sum() for weight in module.parameters()) * delta[0]
            loss = likelihood.loss(module(training.inputs), training.targets).sum() + penalty
            loss.backward()
            return loss

        optimizer.step(closure)

    with pytest.warns(EvidenceWarning, match="max_rounds"):
        found = tune.gradient(
            network(), (x, y), GaussianLikelihood(), train=train, restarts=0, max_rounds=3, tolerance=1e-9
        )
    assert len(calls) == 3
    assert not found.converged
    assert "max_rounds" in str(found)


@pytest.mark.slow
def test_while_training():
    x, y = data()
    module = network()
    tuner = tune.WhileTraining(module, (x, y), GaussianLikelihood(), start=100, every=50)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    first = tuner.prior_precision.item()
    tuned = []
    for epoch in range(600):
        optimizer.zero_grad()
        loss = tuner.likelihood.loss(module(x), y).sum() + tuner.penalty()
        loss.backward()
        optimizer.step()
        tuned += [epoch] if tuner.update(epoch) else []
    assert tuned == list(range(100, 600, 50))
    found = tuner.result()
    assert len(found.trials) == 11
    assert tuner.prior_precision.item() != first
    assert 0.05 < tuner.likelihood.sigma.item() < 0.3
    assert found.gp.evidence().value == found.evidence


def test_the_penalty_of_layers():
    x, y = data()
    module = network()
    tuner = tune.WhileTraining(module, (x, y), GaussianLikelihood(), {"0": 2.0, "2": 0.5}, per_layer=True)
    expected = sum(w.square().sum() for w in module[0].parameters()) + 0.25 * sum(
        w.square().sum() for w in module[2].parameters()
    )
    torch.testing.assert_close(tuner.penalty(), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_rounds": 0}, "max_rounds"),
        ({"likelihood": GaussianLikelihood(0.3), "per_output": True}, "per_output"),
        ({"prior_precision": {"0": 1.0, "2": 2.0}}, "prior_precision"),
        ({"prior_precision": -1.0}, "prior_precision"),
    ],
)
def test_what_cannot_be_tuned_is_refused(change, message):
    given = {"network": network(), "data": data(), "likelihood": GaussianLikelihood(), **change}
    with pytest.raises(InputError, match=message):
        tune.gradient(**given)


def test_epochs_that_mean_nothing_are_refused():
    with pytest.raises(InputError, match="every"):
        tune.WhileTraining(network(), data(), GaussianLikelihood(), every=0)


def test_a_training_function_that_diverges_is_an_error():
    def diverges(network, data, likelihood, precision):
        optimizer = torch.optim.Adam(network.parameters(), lr=1e30)
        for _ in range(3):
            optimizer.zero_grad()
            likelihood.loss(network(data.inputs), data.targets).sum().backward()
            optimizer.step()

    x = torch.linspace(-1, 1, 8, dtype=torch.float64)[:, None]
    network = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)).double()
    with pytest.raises(DivergedError, match="train"):
        tune.gradient(network, (x, x**2), GaussianLikelihood(1e-300), train=diverges)
    assert all(weight.isfinite().all() for weight in network.parameters())
