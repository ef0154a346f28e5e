"""A prediction goes over its inputs once, and over what is kept of the training data without preparing it again."""

from __future__ import annotations

import pytest
import torch

from dnn2gp import Diagonal, FunctionSpace, WeightSpace, convert
from dnn2gp.features import FactoredJacobian, LayerwiseFeatures
from dnn2gp.weights.structures import DiagonalPrecision

from problems import problem

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
CASE = problem("categorical", 9, 3)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def converted(delta=CASE.delta, **settings):
    return convert(CASE.module, (CASE.x, CASE.y), CASE.likelihood, delta, **settings)


@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace(), WeightSpace(Diagonal())], ids=repr)
def test_each_input_is_visited_once(monkeypatch, inference):
    gp = converted(inference=inference)
    expected = gp.predict(CASE.x_test)
    gp.inference.step  # noqa: B018 (computed before counting)
    visited = []
    both = LayerwiseFeatures.outputs_and_factors

    def watched(features, inputs):
        visited.append(len(inputs))
        return both(features, inputs)

    def forbidden(*_, **__):
        raise AssertionError("a pass besides the one for outputs and factors")

    monkeypatch.setattr(LayerwiseFeatures, "outputs_and_factors", watched)
    monkeypatch.setattr(LayerwiseFeatures, "jvp", forbidden)
    monkeypatch.setattr(LayerwiseFeatures, "fast_chunk", lambda *_: 2)
    found = gp.predict(CASE.x_test)
    assert visited == [2, 2]
    for name in ("outputs", "shift", "latent_covariance"):
        close(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("delta", [0.7, CASE.delta], ids=["one number", "one per weight"])
def test_factors_of_the_data_are_whitened_once(monkeypatch, delta):
    """Also where V^{½} is not one number per layer, so that whitening forms rows."""
    gp = converted(delta, inference=FunctionSpace())
    expected = gp.predict(CASE.x_test)
    white = FactoredJacobian._white
    again = []

    def watched(sites, factors):
        again.append(factors)
        return white(sites, factors)

    monkeypatch.setattr(FactoredJacobian, "_white", watched)
    monkeypatch.setattr(LayerwiseFeatures, "fast_chunk", lambda *_: 2)
    close(gp.predict(CASE.x_test).latent_covariance, expected.latent_covariance)
    assert not again


@pytest.mark.parametrize("kept", ["white", "as they are", "none"])
def test_however_much_is_kept(monkeypatch, kept):
    """One δ per weight: rows of Φ need several times the memory of the factors of J."""
    expected = converted(inference=FunctionSpace()).predict(CASE.x_test)
    rows, factors = 8 * 2 * len(CASE.delta), converted(inference=FunctionSpace()).features.measured(CASE.x, 2).kept
    assert rows > 1.5 * factors
    most = {"white": 18 * rows, "as they are": 9 * factors, "none": 0}[kept]
    monkeypatch.setattr("dnn2gp.features.factored_jacobian._SHARE", most / 1e9)
    gp = converted(inference=FunctionSpace(), memory_budget=1e9)
    sites = gp.inference.sites
    sites._reserve = 0
    assert sites.kept() is (kept != "none")
    assert kept == "none" or sites._kept.white is (kept == "white")
    close(gp.predict(CASE.x_test).latent_covariance, expected.latent_covariance)


def test_new_data_join_what_is_kept():
    half = convert(CASE.module, (CASE.x[:5], CASE.y[:5]), CASE.likelihood, CASE.delta, inference=FunctionSpace())
    whole = converted(inference=FunctionSpace())
    joined = half.condition((CASE.x[5:], CASE.y[5:]))
    assert joined.inference.sites._kept is not None
    close(joined.predict(CASE.x_test).latent_covariance, whole.predict(CASE.x_test).latent_covariance)


def test_a_product_written_into_a_larger_matrix():
    features = converted().features
    factors = DiagonalPrecision(torch.ones_like(features.anchor)).whitened(features.factors(CASE.x))
    larger = torch.zeros(9, 3, 14, 3, dtype=torch.float64)
    part = larger[:, :, 2:11]
    assert factors.full(factors, out=part).data_ptr() == part.data_ptr()
    close(part, factors.full(factors))
    assert not larger[:, :, :2].any()
    assert not larger[:, :, 11:].any()
