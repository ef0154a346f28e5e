"""GPNetRegressor and GPNetClassifier: scikit-learn's own checks, and their numbers by an oracle of NumPy and SciPy."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import forked
import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from torch.func import functional_call, jacrev

import dnn2gp.estimators.base as base
import dnn2gp.tune.large_network as large_network
from dnn2gp.estimators import GPNetClassifier, GPNetRegressor
from dnn2gp.inference.calibration import Calibration
from dnn2gp.likelihoods import GaussianLikelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.support.errors import EvidenceWarning, InputError, NotAMinimumWarning
from dnn2gp.tune.restarts import Fitted

from reference import brute_force, likelihoods, linearised

SMALL: dict[str, Any] = {"width": 4, "restarts": 1, "max_rounds": 3}
TINY: dict[str, Any] = {"width": 2, "restarts": 1, "max_rounds": 1}
LINEAR: dict[str, Any] = {"depth": 0, "restarts": 1, "max_rounds": 1}  # for what does not depend on the training


def wave(count: int, seed: int, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """y = 3 sin 2x + 7 + noise, on [−2, 2]."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, count)
    return x[:, None], 3 * np.sin(2 * x) + 7 + noise * rng.normal(size=count)


def plane(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Two inputs of other scales and two targets of other scales."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(count, 2)) * [1.0, 50.0] + [0.0, 200.0]
    y = np.stack([np.tanh(X[:, 0]), 100 * np.sin(X[:, 1] / 50)], 1) + rng.normal(size=(count, 2)) * [0.1, 10.0]
    return X, y


def three_classes(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping blobs with string labels."""
    rng = np.random.default_rng(5)
    labels = np.arange(count) % 3
    centres = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    return centres[labels] + rng.normal(size=(count, 2)), np.array(["red", "green", "blue"])[labels]


@pytest.fixture(scope="module")
def fitted_wave() -> GPNetRegressor:
    return GPNetRegressor(**SMALL).fit(*wave(60, 0))


# The oracle: the transformed regression, dense, from the network's weights alone ------------------------------------


class Oracle(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray  # of f, N·K × N·K, all in the units of y
    log_evidence: float


def standardised(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    return (values - like.mean(0)) / like.std(0)


def outputs_and_jacobian(network: torch.nn.Module, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """f (N·K), J (N·K × P) and w, by torch.func."""
    weights = {name: value.detach() for name, value in network.named_parameters()}
    inputs = torch.tensor(x)
    jacobians = jacrev(lambda w: functional_call(network, w, (inputs,)).flatten())(weights)
    J = torch.cat([jacobians[name].flatten(1) for name in weights], 1).numpy()
    return network(inputs).detach().numpy().ravel(), J, torch.cat([weights[n].flatten() for n in weights]).numpy()


def oracle(est: GPNetRegressor, X: np.ndarray, y: np.ndarray, new: np.ndarray) -> Oracle:
    """ỹ = Jw + (y − f) with prior N(0, I/δ) and noise σ, conditioned by the formulas of a GP in function space."""
    targets = y.reshape(len(y), -1)
    unit = np.tile(targets.std(0), len(y))
    f, J, w = outputs_and_jacobian(est.network_, standardised(X, X))
    f_new, J_new, _ = outputs_and_jacobian(est.network_, standardised(new, X))
    transformed = J @ w + standardised(targets, targets).ravel() - f
    noise = np.tile(np.atleast_1d(est.sigma_), len(y)) / unit
    gram = np.diag(noise**2) + J @ J.T / est.prior_precision_
    cross = J_new @ J.T / est.prior_precision_
    shift = cross @ np.linalg.solve(gram, transformed) - J_new @ w
    covariance = J_new @ J_new.T / est.prior_precision_ - cross @ np.linalg.solve(gram, cross.T)
    unit_new = np.tile(targets.std(0), len(new))
    mean = (f_new + shift) * unit_new + np.tile(targets.mean(0), len(new))
    evidence = multivariate_normal(np.zeros(len(unit)), gram * np.outer(unit, unit)).logpdf(transformed * unit)
    return Oracle(mean, covariance * np.outer(unit_new, unit_new), float(evidence))


# scikit-learn's contract --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPNetRegressor", "GPNetClassifier"])
def test_scikit_learn_checks(name: str) -> None:
    """All of check_estimator: many fits, so without the checks of shapes, which is twice as fast."""
    result = forked.run([Path(__file__).with_name("scikit_learn_checks.py"), name, json.dumps(TINY)], checked=False)
    (count,) = result.stdout.splitlines()  # one more line for each check that failed
    assert int(count.split()[0]) > 40


def test_clone_and_set_params() -> None:
    est = GPNetRegressor(width=[2, 3], sigma=0.5, depth=0)
    assert clone(est).get_params() == est.get_params()
    assert clone(est).set_params(width=7).width == 7
    with pytest.raises(NotFittedError):
        clone(est.fit(*wave(10, 0))).predict([[0.0]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("est", "data"),
    [
        (GPNetRegressor(**{**TINY, "width": 8}), plane(12)),
        (GPNetRegressor(**TINY), plane(40)),
        (GPNetClassifier(**TINY), three_classes()),
    ],
    ids=["function space", "weight space", "classes"],
)
def test_a_pickled_estimator_predicts_the_same(est: Any, data: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    est.fit(*data)
    joblib.dump(est, tmp_path / "est.joblib")
    again = [pickle.loads(pickle.dumps(est)), copy.deepcopy(est), joblib.load(tmp_path / "est.joblib")]
    new = data[0][:7] + 0.1

    def ask(est: Any) -> np.ndarray:
        return est.predict_proba(new) if isinstance(est, GPNetClassifier) else np.stack(est.predict(new, True))

    expected = ask(est)
    for other in again:
        np.testing.assert_array_equal(ask(other), expected)
        assert other.gp_.evidence().value == est.gp_.evidence().value
        assert other.tuning_ == est.tuning_
    np.testing.assert_array_equal(ask(est), expected)  # pickling leaves the estimator as it was


def test_pipeline_and_grid_search() -> None:
    X, y = wave(40, 1)
    pipeline = make_pipeline(PolynomialFeatures(5, include_bias=False), GPNetRegressor(**LINEAR))
    search = GridSearchCV(pipeline, {"gpnetregressor__prior_precision": np.array([1e4, 0.1])}, cv=2).fit(X, y)
    assert search.best_params_ == {"gpnetregressor__prior_precision": 0.1}
    assert search.best_estimator_[-1].n_features_in_ == 5
    assert search.score(X, y) > 0.9


def test_frames_keep_their_names() -> None:
    X, y = plane(15)
    frame = pd.DataFrame(X, columns=["height", "weight"])
    est = GPNetRegressor(**LINEAR).fit(frame, pd.Series(y[:, 0], name="y"))
    assert est.feature_names_in_.tolist() == ["height", "weight"]
    with config_context(transform_output="pandas"):
        np.testing.assert_array_equal(clone(est).fit(frame, y[:, 0]).predict(frame), est.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        est.predict(frame[["weight", "height"]])


def test_random_states() -> None:
    X, y = wave(20, 0)
    torch.manual_seed(1)
    state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1]
    given: dict[str, Any] = {**TINY, "prior_precision": 1.0, "sigma": 1.0}
    fits = [GPNetRegressor(**given, random_state=seed).fit(X, y) for seed in (0, 0, 1, np.random.RandomState(0))]
    first, second, other, instance = (est.predict(X) for est in fits)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, instance)
    assert not np.array_equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())
    np.testing.assert_array_equal(numpy_state, np.random.get_state()[1])


# Regression ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_noise_and_intervals_are_right() -> None:
    est = GPNetRegressor(width=8, restarts=2).fit(*wave(250, 0))
    assert est.sigma_ == pytest.approx(0.3, rel=0.15)
    X, y = wave(500, 1)
    mean, std = est.predict(X, return_std=True)
    covered = np.mean(np.abs(y - mean) < 1.6449 * std)
    assert 0.85 <= covered <= 0.95
    assert est.score(X, y) > 0.95


@pytest.mark.parametrize("targets", [0, slice(0, 2)], ids=["y of N", "y of N × 2"])
def test_prediction_and_evidence_by_hand(targets: int | slice) -> None:
    X, y = plane()
    y = y[:, targets]
    est = GPNetRegressor(**SMALL).fit(X, y)
    new = X[:6] + np.array([0.5, 40.0])
    expected = oracle(est, X, y, new)
    variances = np.diag(expected.covariance).reshape(6, *y.shape[1:])
    shape = variances.shape

    mean, std = est.predict(new, return_std=True)
    np.testing.assert_allclose(mean, expected.mean.reshape(shape), rtol=1e-7)
    np.testing.assert_allclose(std, np.sqrt(variances + np.square(est.sigma_)), rtol=1e-7)
    np.testing.assert_array_equal(est.predict(new), mean)

    parts = est.predict_uncertainty(new)
    np.testing.assert_allclose(parts.epistemic, np.sqrt(variances), rtol=1e-6)
    np.testing.assert_allclose(parts.aleatoric, np.broadcast_to(est.sigma_, shape), rtol=1e-12)
    np.testing.assert_array_equal(parts.mean, mean)

    joint = expected.covariance.reshape(6, -1, 6, mean.size // 6)
    noisy = np.einsum("nkmk->nmk", joint) + np.eye(6)[..., None] * np.square(est.sigma_)
    found = est.predict(new, return_cov=True)[1]
    np.testing.assert_allclose(found, noisy.reshape(found.shape), rtol=1e-6, atol=1e-9 * noisy.max())
    assert found.shape == (6, 6, *y.shape[1:])

    assert est.log_evidence_ == pytest.approx(expected.log_evidence, abs=1e-6)
    assert est.tuning_.evidence == pytest.approx(est.log_evidence_, abs=1e-6)
    assert est.score(X, y) > 0.7


def test_units_of_the_data_do_not_matter() -> None:
    X, y = wave(40, 2)
    est, other = GPNetRegressor(**TINY).fit(X, y), GPNetRegressor(**TINY).fit(1000 * X + 5, 10 * y - 3)
    (mean, std), (other_mean, other_std) = est.predict(X, True), other.predict(1000 * X + 5, True)
    np.testing.assert_allclose(other_mean, 10 * mean - 3, rtol=1e-5)
    np.testing.assert_allclose(other_std, 10 * std, rtol=1e-5)
    assert other.sigma_ == pytest.approx(10 * est.sigma_, rel=1e-5)
    assert other.log_evidence_ == pytest.approx(est.log_evidence_ - 40 * np.log(10), abs=1e-3)


def test_samples_have_the_moments_of_the_prediction(fitted_wave: GPNetRegressor) -> None:
    new = np.array([[-1.0], [-0.9], [4.0]])
    draws = fitted_wave.sample_y(new, 20_000, random_state=1)
    mean, covariance = fitted_wave.predict(new, return_cov=True)
    assert draws.shape == (3, 20_000)
    deviations = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((draws.mean(1) - mean) / deviations, 0.0, atol=0.03)
    np.testing.assert_allclose(
        np.cov(draws) / np.outer(deviations, deviations), covariance / np.outer(deviations, deviations), atol=0.03
    )
    np.testing.assert_array_equal(fitted_wave.sample_y(new, 5), fitted_wave.sample_y(new, 5))
    X, y = plane(20)
    assert GPNetRegressor(**LINEAR).fit(X, y).sample_y(X, 4).shape == (20, 2, 4)


def test_the_width_of_the_largest_evidence_is_taken() -> None:
    X, y = wave(60, 0)
    settings = {**SMALL, "max_rounds": 2}
    alone = {width: GPNetRegressor(**{**settings, "width": width}).fit(X, y) for width in (1, 6)}
    est = GPNetRegressor(**{**settings, "width": (1, 6)}).fit(X, y)
    curve = est.tuning_.curve("width")
    assert curve.settings == [1, 6]
    np.testing.assert_allclose(curve.mean, [each.log_evidence_ for each in alone.values()], atol=1e-6)
    assert est.width_ == max(alone, key=lambda width: alone[width].log_evidence_) == est.tuning_.best["width"]
    np.testing.assert_array_equal(est.predict(X), alone[est.width_].predict(X))
    assert est.network_[0].out_features == est.width_


@pytest.mark.parametrize(
    ("given", "sigma"), [({"sigma": 0.25}, 0.25), ({"sigma": 2}, 2.0), ({"prior_precision": 0.7, "sigma": 0.25}, 0.25)]
)
def test_what_is_given_is_kept(given: dict[str, float], sigma: float) -> None:
    X, y = wave(40, 0)
    est = GPNetRegressor(**TINY, **given).fit(X, y)
    assert est.sigma_ == pytest.approx(sigma, rel=1e-12)
    if "prior_precision" in given:
        assert est.prior_precision_ == 0.7
    assert est.log_evidence_ == pytest.approx(oracle(est, X, y, X[:1]).log_evidence, abs=1e-6)


def test_given_noise_of_several_targets() -> None:
    X, y = plane()
    for sigma, expected in ((5.0, [5.0, 5.0]), ([0.1, 9.0], [0.1, 9.0]), (np.array([0.1, 9.0]), [0.1, 9.0])):
        est = GPNetRegressor(**LINEAR, sigma=sigma).fit(X, y)
        np.testing.assert_allclose(est.sigma_, expected)
        np.testing.assert_allclose(est.predict_uncertainty(X[:1]).aleatoric, [expected])
        assert est.log_evidence_ == pytest.approx(oracle(est, X, y, X[:1]).log_evidence, abs=1e-5)


def test_constant_targets_and_columns() -> None:
    X, y = wave(20, 0)
    est = GPNetRegressor(**SMALL).fit(np.hstack([X, np.full_like(X, 0.1)]), np.full(20, 7.3))
    mean, std = est.predict([[0.5, 0.1], [9.0, 4.0]], return_std=True)
    np.testing.assert_allclose(mean, 7.3, rtol=1e-12)
    assert ((std >= 1e-4) & (std < 1e-3)).all()
    line = 3 * X[:, 0] + 0.1 * y
    beside = GPNetRegressor(**LINEAR).fit(np.hstack([X, np.ones_like(X)]), line)
    assert beside.score(np.hstack([X, np.ones_like(X)]), line) > 0.9


def test_a_training_without_a_minimum_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = wave(30, 0)

    def untrained(relative_gradient: float) -> Any:
        network = mlp(1, 1, width=3).double()
        return lambda *_, **__: Fitted(network, GaussianLikelihood(0.1), 1.0, 0.0, relative_gradient, 1, False)

    monkeypatch.setattr(base, "fit_restarts", untrained(0.4))
    with pytest.warns(ConvergenceWarning, match="gradient is 40% of its parts") as caught:
        est = GPNetRegressor(**TINY).fit(X, y)
    assert not any(issubclass(each.category, NotAMinimumWarning) for each in caught)
    assert {each.filename for each in caught if each.category is ConvergenceWarning} == {__file__}
    assert not est.tuning_.converged
    assert "max_rounds" in str(est.tuning_)
    monkeypatch.setattr(base, "fit_restarts", untrained(0.04))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GPNetRegressor(**TINY).fit(X, y)


@pytest.mark.slow
def test_many_weights_by_hand() -> None:
    """3,004 weights: trained with L-BFGS, in function space. The evidence is the one that was tuned."""
    X, y = wave(30, 0)
    est = GPNetRegressor(width=1001, restarts=1, max_rounds=4).fit(X, y)
    expected = oracle(est, X, y, X[:6] + 0.1)
    mean, std = est.predict(X[:6] + 0.1, return_std=True)
    np.testing.assert_allclose(mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(std, np.sqrt(np.diag(expected.covariance) + est.sigma_**2), rtol=1e-6)
    assert est.log_evidence_ == pytest.approx(expected.log_evidence, abs=1e-5)
    assert est.score(*wave(200, 1)) > 0.9


@pytest.mark.slow
def test_an_approximate_posterior_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = wave(30, 0)
    monkeypatch.setattr(large_network, "EXACT_SIZE", 20)
    with pytest.warns(EvidenceWarning, match=r"Kronecker\(\)"):
        est = GPNetRegressor(width=1001, restarts=1, max_rounds=2).fit(X, y)
    assert "Kronecker()" in str(est.tuning_)
    assert not est.gp_.inference.exact
    assert np.isfinite(est.predict(X, return_std=True)[1]).all()


# Classes ------------------------------------------------------------------------------------------------------------


def test_iris() -> None:
    X, y = load_iris(return_X_y=True)
    scores = cross_val_score(GPNetClassifier(width=2, restarts=1, max_rounds=2), X, y, cv=3)
    assert scores.mean() >= 0.95


def test_probabilities_average_over_the_gp() -> None:
    X, y = three_classes()
    est = GPNetClassifier(**SMALL).fit(X, y)
    assert est.classes_.tolist() == ["blue", "green", "red"]
    new = np.vstack([X[:20], [[1.5, 1.5], [20.0, -30.0]]])
    found = est.predict_proba(new)
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(est.predict_log_proba(new), np.log(found), rtol=1e-9)
    np.testing.assert_array_equal(est.predict(new), est.classes_[found.argmax(1)])
    assert est.score(X, y) > 0.8

    # N(f, J Σ̃ Jᵀ) by dense matrices, and the average over many samples of it
    f, J, w = outputs_and_jacobian(est.network_, standardised(X, X))
    p = softmax(f.reshape(-1, 3))
    J_rows = J.reshape(len(X), 3, -1)
    precision = np.eye(len(w)) * est.prior_precision_
    for row, own in zip(J_rows, p, strict=True):
        precision += row.T @ (np.diag(own) - np.outer(own, own)) @ row
    f_new, J_new, _ = outputs_and_jacobian(est.network_, standardised(new, X))
    step = np.linalg.solve(precision, J.T @ (p - (est.classes_ == y[:, None])).ravel() + est.prior_precision_ * w)
    mean = (f_new - J_new @ step).reshape(-1, 3)
    rows = J_new.reshape(len(new), 3, -1)
    covariance = rows @ np.linalg.inv(precision) @ rows.transpose(0, 2, 1)
    draws = np.random.default_rng(0).normal(size=(100_000, 3))

    def averages(scale: float, temperature: float) -> np.ndarray:
        """E softmax(f) for f ~ N(m/τ, a V/τ²)."""
        own = zip(mean / temperature, covariance * scale / temperature**2, strict=True)
        return np.stack([softmax(m + draws @ root(C).T).mean(0) for m, C in own])

    average = averages(1.0, 1.0)
    exact = replace(est.gp_, calibration=Calibration()).predict(torch.as_tensor(standardised(new, X))).probabilities
    np.testing.assert_allclose(exact, average, atol=0.01)  # five standard errors, and the error of the points
    plain = softmax(f_new.reshape(-1, 3))
    assert np.abs(exact.numpy() - average).max() < 0.1 * np.abs(plain - average).max()
    calibration = est.gp_.calibration
    assert calibration != Calibration()
    np.testing.assert_allclose(found, averages(calibration.scale, calibration.temperature), atol=0.01)

    labels = torch.as_tensor(np.searchsorted(est.classes_, y))
    parts = [torch.as_tensor(own) for own in (J_rows, f.reshape(-1, 3), w)]
    delta = torch.full_like(parts[2], est.prior_precision_)
    at_mode = linearised.evidence(*parts, labels, brute_force.categorical, likelihoods.categorical_log_prob, delta)
    assert est.gp_.evidence().value == pytest.approx(at_mode, abs=1e-6)

    # log_evidence_ is what was tuned: Laplace's evidence at the weights of the network
    log_joint = np.log(p[np.arange(len(X)), labels]).sum() - est.prior_precision_ / 2 * w @ w
    complexity = 0.5 * (np.linalg.slogdet(precision)[1] - len(w) * np.log(est.prior_precision_))
    assert est.log_evidence_ == pytest.approx(log_joint - complexity, abs=1e-6)
    assert est.log_evidence_ == est.tuning_.evidence


def root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(values.clip(0))


def softmax(f: np.ndarray) -> np.ndarray:
    e = np.exp(f - f.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# Errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"width": 0}, r"width: expected an int ≥ 1 or a sequence of them; got 0"),
        ({"width": 2.5}, r"width: .* got 2.5"),
        ({"width": [3, "4"]}, r"width: .* got '4'"),
        ({"width": []}, r"width: .* empty"),
        ({"width": True}, r"width: .* got True"),
        ({"depth": -1}, r"depth: expected an int ≥ 0; got -1"),
        ({"restarts": 0}, r"restarts: expected an int ≥ 1; got 0"),
        ({"max_rounds": None}, r"max_rounds: .* got None"),
        ({"activation": "cosine"}, r"activation: expected one of tanh, .*; got 'cosine'"),
        (
            {"prior_precision": "laplace"},
            r'prior_precision: expected "evidence" or a finite number > 0; got \'laplace\'',
        ),
        ({"prior_precision": float("nan")}, r"prior_precision: .* got nan"),
        ({"sigma": 0.0}, r"sigma: .* got 0.0"),
        ({"sigma": [0.1, 0.2]}, r"sigma: .*1 targets; got 2"),
        ({"width": 6667}, r"at most 20000 weights.*got 20002, .* width 6667, .*PCA"),
        ({"width": [2, 140], "depth": 2}, r"got 20161, .* width 140, depth 2"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        GPNetRegressor(**settings).fit(*wave(10, 0))


def test_data_that_cannot_be_used(fitted_wave: GPNetRegressor) -> None:
    X, y = wave(10, 0)
    with pytest.raises(InputError, match="at least 2 classes; got 1 class, 'a'"):
        GPNetClassifier().fit(X, ["a"] * 10)
    with pytest.raises(ValueError, match="Unknown label type"):
        GPNetClassifier().fit(X, y)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        GPNetRegressor().fit(X, np.where(y > 7, np.nan, y))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        fitted_wave.predict([[np.nan]])
    with pytest.raises(InputError, match="column 0 overflow"):
        GPNetRegressor().fit(X * 1e300, y)
    with pytest.raises(InputError, match="return_std or return_cov"):
        fitted_wave.predict(X, return_std=True, return_cov=True)
