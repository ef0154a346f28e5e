"""gp.calibrated() and the default of convert against brute force: grids of (a, τ), and the recipe written out."""

from __future__ import annotations

import math
import sys
import warnings

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from dnn2gp import CategoricalLikelihood, FunctionSpace, GaussianLikelihood, Kronecker, WeightSpace, convert, load, save
from dnn2gp.gp.automatic import _LeaveOneOut, automatic
from dnn2gp.inference import GaussNewtonStep, LinearisedMode, NetworkOutput
from dnn2gp.inference.calibration import Calibration
from dnn2gp.support.errors import CautiousWarning, InputError, NotAMinimumWarning, NotFiniteError
from dnn2gp.weights.expansion import Expansion

from problems import problem
from reference import brute_force, linearised

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


def _trained(seed: int = 0, epochs: int = 150, examples: int = 60, width: int = 15, decay: float = 0.0):
    """A three-class problem with noisy labels, and a network trained by Adam: overfit after 150 epochs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples * 4, 2, generator=generator).double()
    logits = torch.stack([2 * x[:, 0], -2 * x[:, 0], 2 * x[:, 1]], 1)
    y = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 3)).double()
        optimizer = torch.optim.Adam(network.parameters(), 0.05, weight_decay=decay)
        for _ in range(epochs):
            for batch in torch.randperm(examples).split(20):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[:examples][batch]), y[:examples][batch]).backward()
                optimizer.step()
    parts = slice(0, examples), slice(examples, 2 * examples), slice(2 * examples, None)
    return network, *((x[part], y[part]) for part in parts)


def _average(mean, covariance, y, a, tau, draws=20_000):
    """−mean log E softmax(f)_y by plain Monte Carlo in NumPy."""
    generator = np.random.default_rng(0)
    root = np.linalg.cholesky(a * covariance + 1e-12 * np.eye(3))
    f = (mean[:, None] + np.einsum("nkl,nsl->nsk", root, generator.normal(size=(len(y), draws, 3)))) / tau
    f = f - f.max(2, keepdims=True)
    p = np.exp(f) / np.exp(f).sum(2, keepdims=True)
    return -np.log(p[np.arange(len(y)), :, y].mean(1)).mean()


def _at_mode(network, data, delta):
    """f, f₋, V₋ at the mode of the linearised network by explicit matrices."""
    x, y = data
    f, J, w = brute_force.outputs(network, x), brute_force.jacobian(network, x), brute_force.flat_weights(network)
    parts = J, f, w, y, brute_force.categorical, torch.full_like(w, delta)
    theta = linearised.mode(*parts)
    at_mode = f + J @ (theta - w)
    r, Lam = brute_force.residual_and_precision(brute_force.categorical, at_mode, y)
    covariance = torch.linalg.inv(torch.func.hessian(lambda at: linearised.total(at, *parts))(theta))
    V = torch.einsum("nkp,pq,nlq->nkl", J, covariance, J)
    left = torch.linalg.solve(torch.eye(3, dtype=V.dtype) - V @ Lam, V)
    left = (left + left.mT) / 2
    return f, at_mode, at_mode + (left @ r.unsqueeze(-1)).squeeze(-1), left


def test_calibrated_minimises_the_leave_one_out_nll():
    network, train, _, _ = _trained()
    gp = convert(network, train, CategoricalLikelihood(), 1.0, mean=LinearisedMode()).calibrated()
    _, _, mean, covariance = _at_mode(network, train, 1.0)
    arrays = mean.numpy(), covariance.numpy(), train[1].numpy()
    chosen = _average(*arrays, gp.calibration.scale, gp.calibration.temperature)
    grid = {(a, t): _average(*arrays, a, t, 4000) for a in (0.01, 0.1, 0.3, 1, 3) for t in (0.5, 0.7, 1, 1.5, 2, 3)}
    assert chosen < min(grid.values()) + 0.01
    assert gp.leave_one_out().nll == pytest.approx(chosen, abs=0.005)


@pytest.mark.parametrize("space", [WeightSpace(), FunctionSpace()])
def test_the_default_is_the_recipe(space):
    """An overfit network: around the network, with τρ ≥ 1 and ½ a min(1, ρ²) from leave-one-out at the mode."""
    network, train, _, _ = _trained()
    gp = convert(network, train, CategoricalLikelihood(), 1.0, inference=space)
    f, at_mode, mean, covariance = _at_mode(network, train, 1.0)
    own = convert(network, train, CategoricalLikelihood(), 1.0, mean=LinearisedMode())
    from dnn2gp.gp.calibrate import POINTS, best_calibration
    from dnn2gp.inference.averages import averages

    found = averages(CategoricalLikelihood(), mean, covariance, POINTS)
    careful = best_calibration(found, train[1], CategoricalLikelihood(), sharper=False)
    network_nll = nn.functional.cross_entropy(f, train[1]).item()
    assert careful.nll > network_nll  # the network fits better than leave-one-out predicts
    centred = [values - values.mean(1, keepdim=True) for values in (f, at_mode)]
    ratio = (centred[0].norm() / centred[1].norm()).item()
    assert gp.centre == NetworkOutput(sites_at_mode=True)
    assert gp.calibration.temperature == pytest.approx(max(1, ratio * careful.calibration.temperature), rel=1e-3)
    assert gp.calibration.scale == pytest.approx(0.5 * min(1, ratio**2) * careful.calibration.scale, rel=1e-2, abs=1e-3)
    assert own.calibration == Calibration()  # a given mean is exact
    test_inputs = train[0][:5] + 0.1
    assert torch.equal(gp.predict(test_inputs).uncalibrated.latent_mean, brute_force.outputs(network, test_inputs))


@pytest.mark.parametrize(("ratio", "scale", "temperature"), [(0.6, 0.5 * 0.36 * 0.8, 1.0), (2.0, 0.5 * 0.8, 3.0)])
def test_a_calibration_at_the_mode_for_the_logits_of_the_network(ratio, scale, temperature):
    """½ min(1, ρ²) a and max(1, ρτ) for a = 0.8 and τ = 1.5; a constant that is added to all logits does not count."""
    generator = torch.Generator().manual_seed(0)
    mode = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    covariance = torch.eye(3, dtype=torch.float64).expand(7, 3, 3)
    left = _LeaveOneOut(CategoricalLikelihood(), torch.arange(7) % 3, mode, covariance, mode, ratio * mode + 5)
    found = left.around_network(Calibration(0.8, 1.5))
    assert found.scale == pytest.approx(scale)
    assert found.temperature == pytest.approx(temperature)


def test_an_underfit_network_predicts_at_the_mode():
    network, train, _, test = _trained(epochs=0, examples=200)
    gp = convert(network, train, CategoricalLikelihood())
    assert gp.centre == LinearisedMode()
    plain = nn.functional.cross_entropy(brute_force.outputs(network, test[0]), test[1]).item()
    assert -gp.predict(test[0]).log_prob(test[1]).mean().item() < plain


def test_leave_one_out_to_first_order_does_not_move_the_mean():
    """With a small δ, some examples seem to determine their own output alone, where the covariance is approximate."""
    network, train, validation, _ = _trained(epochs=0, examples=30)
    gp = convert(network, train, CategoricalLikelihood(), 1e-2, structure=Kronecker())
    assert gp.centre == NetworkOutput(sites_at_mode=True)
    exact = convert(network, train, CategoricalLikelihood(), 1e-2)
    assert exact.centre == LinearisedMode()
    held = convert(network, train, CategoricalLikelihood(), 1e-2, structure=Kronecker(), validation=validation)
    assert held.centre == LinearisedMode()


@pytest.mark.parametrize("structure", [None, Kronecker()])
def test_an_overfit_network_gets_better_not_worse(structure):
    for seed in range(3):
        network, train, _, test = _trained(seed)
        gp = convert(network, train, CategoricalLikelihood(), structure=structure)
        plain = nn.functional.cross_entropy(brute_force.outputs(network, test[0]), test[1]).item()
        assert -gp.predict(test[0]).log_prob(test[1]).mean().item() < plain


def test_validation_is_at_least_temperature_scaling():
    """But for the prior around what leave-one-out says, which is that of a few examples."""
    for seed in range(3):
        network, train, held, _ = _trained(seed)
        gp = convert(network, train, CategoricalLikelihood(), validation=held)
        guess = convert(network, train, CategoricalLikelihood())
        assert guess.centre == NetworkOutput(sites_at_mode=True)
        outputs, taus = brute_force.outputs(network, held[0]), np.exp(np.linspace(-2, 3, 400))
        losses = np.array([nn.functional.cross_entropy(outputs / t, held[1]).item() for t in taus])
        priors = 2 * np.log(taus / guess.calibration.temperature) ** 2
        priors += 0.5 * (np.log(max(1e-3, guess.calibration.scale) / 1e-3) / 2) ** 2
        scaled, found = losses.min(), -gp.predict(held[0]).log_prob(held[1]).mean().item()
        assert found <= (losses + priors / len(held[1])).min() + 1e-4
        around = convert(network, train, CategoricalLikelihood(), mean=NetworkOutput(), validation=held)
        assert -around.predict(held[0]).log_prob(held[1]).mean().item() <= scaled + 1e-3
        assert around.centre == NetworkOutput()


def test_errors_name_the_validation_set():
    network, train, (x, y), _ = _trained(epochs=1)
    gp = convert(network, train, CategoricalLikelihood(), 1.0)
    for data, match in [
        ((x[:0], y[:0]), "validation, inputs: expected at least one example"),
        ((x, y + 1), r"validation, targets: expected labels 0\.\.2"),
        ((x[:, :1], y), "validation, inputs: the network's forward fails"),
        (x, "validation, data: expected a pair"),
    ]:
        with pytest.raises(InputError, match=match):
            convert(network, train, CategoricalLikelihood(), 1.0, validation=data)
        with pytest.raises(InputError, match=match):
            gp.calibrated(data)


def test_validation_targets_that_overflow():
    x = torch.linspace(-1, 1, 10, dtype=torch.float64)[:, None]
    gp = convert(nn.Linear(1, 1).double(), (x, x.sin()), GaussianLikelihood(0.1), 1.0)
    with pytest.raises(NotFiniteError, match="validation: the targets are so far from the predictions"):
        gp.calibrated((x, 1e200 * x))


def test_a_few_validation_examples_do_not_choose_the_mode():
    """Both means with their best temperature by brute force: the mode gains more than 1/N, but less than its error."""
    network, train, held, _ = _trained(1, epochs=60)
    x, y = held[0][:20], held[1][:20]
    w, delta = brute_force.flat_weights(network), 1.0
    f, J = brute_force.outputs(network, train[0]), brute_force.jacobian(network, train[0])
    theta = linearised.mode(J, f, w, train[1], brute_force.categorical, torch.full_like(w, delta))
    outputs = brute_force.outputs(network, x)
    found = []
    for logits in (outputs, outputs + brute_force.jacobian(network, x) @ (theta - w)):
        taus = np.exp(np.linspace(-2, 3, 2001))
        values = [nn.functional.cross_entropy(logits / t, y).item() + 0.5 * np.log(t) ** 2 / 20 for t in taus]
        tau = taus[int(np.argmin(values))]
        found.append((tau, -nn.functional.cross_entropy(logits / tau, y, reduction="none")))
    gains = found[1][1] - found[0][1]
    assert 1 / 20 < gains.mean() < 2 * gains.std() / math.sqrt(20)
    gp = convert(network, train, CategoricalLikelihood(), delta, validation=(x, y))
    assert gp.centre == NetworkOutput(sites_at_mode=True)


@pytest.mark.parametrize("count", [1, 5])
def test_validation_starts_from_what_leave_one_out_says(count):
    """The temperature by brute force, with a prior around that of leave-one-out; the covariance is tiny here."""
    network, train, held, _ = _trained(1, epochs=60)
    x, y = held[0][:count], held[1][:count]
    guess = convert(network, train, CategoricalLikelihood(), 1.0)
    assert guess.centre == NetworkOutput(sites_at_mode=True)
    assert guess.calibration.scale < 1e-3
    outputs, taus = brute_force.outputs(network, x), np.exp(np.linspace(-2, 3, 4001))
    gaps = np.log(taus / guess.calibration.temperature)
    losses = [nn.functional.cross_entropy(outputs / tau, y, reduction="sum").item() for tau in taus]
    gp = convert(network, train, CategoricalLikelihood(), 1.0, validation=(x, y))
    assert gp.calibration.temperature == pytest.approx(taus[int(np.argmin(losses + 2 * gaps**2))], rel=5e-3)


def test_an_underfit_network_predicts_at_the_mode_with_validation_data():
    network, train, held, test = _trained(epochs=0, examples=200)
    few = held[0][:10], held[1][:10]
    gp = convert(network, train, CategoricalLikelihood(), validation=few)
    assert gp.centre == LinearisedMode()
    plain = nn.functional.cross_entropy(brute_force.outputs(network, test[0]), test[1]).item()
    assert -gp.predict(test[0]).log_prob(test[1]).mean().item() < plain


def test_a_single_validation_example_does_not_overrule_leave_one_out():
    """It prefers the mode, as leave-one-out does, but has no standard error."""
    network, train, held, _ = _trained(epochs=0, examples=200)
    mode = convert(network, train, CategoricalLikelihood())
    assert mode.centre == LinearisedMode()
    plain = -nn.functional.cross_entropy(brute_force.outputs(network, held[0]), held[1], reduction="none")
    likely = (mode.predict(held[0]).log_prob(held[1]) - plain).argmax()
    x, y = held[0][likely][None], held[1][likely][None]
    assert convert(network, train, CategoricalLikelihood(), validation=(x, y)).centre == LinearisedMode()


def test_a_prior_that_is_stronger_than_that_of_the_training_is_named():
    """The linearised network at its own minimum, by brute force, fits the training data much worse."""
    network, train, _, test = _trained(1, epochs=60)
    w = brute_force.flat_weights(network)
    f, J = brute_force.outputs(network, train[0]), brute_force.jacobian(network, train[0])
    theta = linearised.mode(J, f, w, train[1], brute_force.categorical, torch.full_like(w, 30.0))
    losses = [nn.functional.cross_entropy(logits, train[1]).item() for logits in (f, f + J @ (theta - w))]
    assert losses[1] > losses[0] + 0.1
    words = f"NLL of {losses[0]:.2g}, .* one of {losses[1]:.2g}"
    with pytest.warns(NotAMinimumWarning, match=words):
        convert(network, train, CategoricalLikelihood(), 30.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAMinimumWarning)
        convert(network, train, CategoricalLikelihood())
        convert(network, train, CategoricalLikelihood(), 1e-2)
        convert(network, train, CategoricalLikelihood(), 30.0, validation=test)


def test_with_two_examples_per_class_the_probabilities_are_those_of_the_network():
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(20, 8, generator=generator).double()
    y, new = (torch.arange(count) % 20 for count in (40, 400))
    x, inputs = (centres[labels] + torch.randn(len(labels), 8, generator=generator).double() for labels in (y, new))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 20)).double()
        optimizer = torch.optim.Adam(network.parameters(), 0.02, weight_decay=1e-4)
        for _ in range(200):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    with pytest.warns(CautiousWarning, match="classes of fewer than 5.*validation"):
        gp = convert(network, (x, y), CategoricalLikelihood())
    expected = torch.softmax(network(inputs), 1).detach()
    torch.testing.assert_close(gp.predict(inputs).probabilities, expected, atol=1e-4, rtol=1e-4)
    held = inputs[:200], new[:200]
    validated = convert(network, (x, y), CategoricalLikelihood(), validation=held).predict(inputs[200:])
    assert -validated.log_prob(new[200:]).mean() < nn.functional.cross_entropy(network(inputs[200:]), new[200:])


def test_a_single_validation_example_leaves_a_regression_as_it_is():
    case = problem("gaussian", 30, outputs=1)
    gp = convert(case.module, (case.x, case.y), GaussianLikelihood(2.0), 1.0)
    assert gp.calibrated((case.x_test[:1], torch.zeros(1, 1, dtype=torch.float64))).calibration == Calibration()


def test_gradient_features_are_calibrated_around_the_network():
    network, train, held, _ = _trained()
    settings = {"expansion": Expansion.empirical_fisher, "validation": held}
    gp = convert(network, train, CategoricalLikelihood(), 1.0, **settings)
    assert gp.centre == NetworkOutput()
    outputs = brute_force.outputs(network, held[0])
    scaled = min(nn.functional.cross_entropy(outputs / t, held[1]).item() for t in np.exp(np.linspace(-2, 3, 400)))
    assert -gp.predict(held[0]).log_prob(held[1]).mean().item() <= scaled + 1e-3


def test_regression_is_calibrated_by_its_scale_and_noise():
    """Leave-one-out of a Gaussian is exact, so the density is a Gaussian with aV₋ + s²σ²."""
    case = problem("gaussian", 30, outputs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAMinimumWarning)
        gp = convert(case.module, (case.x, case.y), GaussianLikelihood(2.0), 1.0)
    left = gp.leave_one_out()
    mean, variance = left.latent_mean[:, 0].numpy(), left.latent_covariance[:, 0, 0].numpy()

    def nll(a: float, s: float) -> float:
        deviation = np.sqrt(a * variance + (2.0 * s) ** 2)
        return -scipy.stats.norm.logpdf(case.y[:, 0].numpy(), mean, deviation).mean()

    found = gp.calibrated().calibration

    def objective(a: float, s: float) -> float:
        return nll(a, s) + 0.5 * np.log(s) ** 2 / len(case.y)  # log s ~ N(0, 1)

    grid = min(objective(a, s) for a in np.geomspace(1e-6, 100, 40) for s in np.geomspace(0.05, 20, 60))
    assert found.temperature == 1
    assert objective(found.scale, found.noise) <= grid + 1e-6
    assert gp.calibrated().leave_one_out().nll == pytest.approx(nll(found.scale, found.noise))
    assert gp.calibrated((case.x, case.y)).calibration != found  # the training data as validation data: too narrow


def test_at_the_single_step_there_is_no_leave_one_out():
    network, train, held, _ = _trained()
    gp = convert(network, train, CategoricalLikelihood(), 1.0, mean=GaussNewtonStep())
    with pytest.raises(InputError, match="calibrated"):
        gp.calibrated()
    assert gp.calibrated(held).calibration != Calibration()


def test_the_calibration_reaches_every_answer():
    network, train, _, test = _trained()
    exact = convert(network, train, CategoricalLikelihood(), 1.0, mean=LinearisedMode())
    gp = exact.calibrated()
    a, tau = gp.calibration.scale, gp.calibration.temperature
    assert tau != 1
    assert "temperature" in repr(gp)
    assert "temperature" not in repr(exact)
    x = test[0][:4]
    torch.testing.assert_close(gp.covariance(x), exact.covariance(x) * a / tau**2)
    draws = gp.sample_functions(20_000, torch.Generator().manual_seed(0))(x)
    prediction = gp.predict(x).calibrated
    deviation = prediction.latent_covariance.diagonal(dim1=1, dim2=2).sqrt()
    assert deviation.min() > 0
    assert ((draws.mean(0) - prediction.latent_mean).abs() / deviation).max() < 5 / math.sqrt(20_000)
    assert (draws.std(0) / deviation - 1).abs().max() < 0.03


def test_it_is_saved(tmp_path):
    network, train, _, test = _trained()
    for gp in (convert(network, train, CategoricalLikelihood()), convert(network, train, CategoricalLikelihood(), 1.0)):
        save(gp, tmp_path / "gp")
        again = load(tmp_path / "gp", network)
        assert again.calibration == gp.calibration
        assert again.centre == gp.centre
        assert torch.equal(again.predict(test[0]).probabilities, gp.predict(test[0]).probabilities)
        assert torch.equal(again.leave_one_out().log_prob, gp.leave_one_out().log_prob)


def test_conditioned_on_more_data_the_mean_moves():
    """Around the network: its output plus the move of the mode, by explicit matrices."""
    network, train, more, test = _trained(examples=20, epochs=30)
    x, y = (torch.cat(parts) for parts in zip(train, more, strict=True))
    w = brute_force.flat_weights(network)
    delta = torch.ones_like(w)

    def mode(x, y):
        f, J = brute_force.outputs(network, x), brute_force.jacobian(network, x)
        return linearised.mode(J, f, w, y, brute_force.categorical, delta)

    moved = mode(x, y) - mode(*train)
    J_test = brute_force.jacobian(network, test[0])
    for mean, start in ((NetworkOutput(sites_at_mode=True), w), (LinearisedMode(), mode(*train))):
        gp = convert(network, train, CategoricalLikelihood(), 1.0, mean=mean).condition(more)
        assert gp.centre == mean
        expected = brute_force.outputs(network, test[0]) + J_test @ (start - w + moved)
        torch.testing.assert_close(gp.predict(test[0]).latent_mean, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(InputError, match="condition"):
        convert(network, train, CategoricalLikelihood(), 1.0, mean=NetworkOutput()).condition(more)


def test_the_automatic_choice_takes_a_linear_model():
    network, train, _, _ = _trained()
    gp = convert(network, train, CategoricalLikelihood(), 1.0, mean=GaussNewtonStep())
    found = automatic(gp.model, gp.inference.method, gp.likelihood)
    assert found.calibration == convert(network, train, CategoricalLikelihood(), 1.0).calibration


@pytest.mark.parametrize("validated", [False, True])
def test_without_a_mode_the_gp_predicts_around_the_network(validated, monkeypatch):
    """Where the search does not converge, as for the loss of a custom likelihood that is not convex."""
    network, train, held, _ = _trained(epochs=20)
    monkeypatch.setattr(sys.modules["dnn2gp.inference.linearised_mode"], "_STEPS", 0)
    with pytest.warns(NotAMinimumWarning, match="predicts around the network"):
        gp = convert(network, train, CategoricalLikelihood(), 1.0, validation=held if validated else None)
    assert gp.centre == NetworkOutput()
    assert gp.calibration.is_identity is not validated
