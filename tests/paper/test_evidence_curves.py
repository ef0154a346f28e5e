"""The curves of Figs. 5 and 6: on the paper's draws compared with the paper's values; small ones everywhere."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dnn2gp.paper import evidence_curves
from dnn2gp.paper.datasets import generate_draws
from dnn2gp.paper.datasets.folder import find
from dnn2gp.paper.datasets.wine import random_splits
from dnn2gp.paper.evidence_curves import Stars
from dnn2gp.paper.figure import FigureResult, Workspace
from dnn2gp.paper.figures import synthetic as synthetic_figure
from dnn2gp.paper.figures import wine as wine_figure
from dnn2gp.paper.published_curves import PublishedCurve, error_claim, evidence_claim
from dnn2gp.support.errors import InputError, OtherWorkError

# The mean log evidence that the paper's runs have at δ = 10^(−1 + k/5), k = 0, …, 15 (10 draws, Laplace).
PAPER = [
    *(-117.1662, -114.4504, -112.5305, -110.9302, -110.151, -110.1911, -110.7761, -111.8252),
    *(-112.9361, -113.3754, -113.4414, -114.4901, -115.9143, -117.5651, -118.9082, -119.3267),
]
SMALL = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
STEP = 10**0.2 * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.skipif(find("synthetic_regression.npz") is None, reason="the paper's draws are not in DNN2GP_DATA")
def test_the_papers_curve_on_the_papers_draws():
    """Trainings to a minimum with six of the 21 δ: the maximum within a grid step, the paper's values, nearly the best
    test error."""
    config = synthetic_figure.FIGURE.paper
    places = [5, 9, 10, 11, 15, 20]
    few = replace(config, deltas=tuple(config.deltas[place] for place in places))
    found = synthetic_figure.laplace_curve(few, Workspace())
    curve, error = found.curve("prior_precision"), found.curve("prior_precision", "test_error")
    assert len(found.trials) == 60
    assert 0.63 / STEP < found.best["prior_precision"] < 0.632 * STEP
    assert abs(found.evidence - (-110.15)) < 0.5
    for ours, place in zip(curve.mean, places, strict=True):
        assert ours == pytest.approx(PAPER[place - 5], rel=0.015)
    chosen = error.mean[curve.settings.index(found.best["prior_precision"])]
    assert chosen < 1.05 * min(error.mean)
    gradients = torch.tensor([trial.values["relative_gradient"] for trial in found.trials])
    assert gradients.median() < 1e-4
    assert gradients.max() < 0.05


@pytest.mark.slow
@pytest.mark.skipif(find("wine_splits_standardised.npz") is None, reason="the paper's splits are not in DNN2GP_DATA")
def test_the_papers_maximum_on_the_papers_splits_of_wine():
    """Some of the 30 δ on some of the 20 splits: the largest evidence at the paper's δ, and there the least error."""
    config = wine_figure.FIGURE.paper
    few = replace(config, deltas=tuple(config.deltas[place] for place in (11, 15, 19)), num_splits=2)
    found = wine_figure.curve(few, "prior_precision", Workspace())
    assert found.best["prior_precision"] == config.deltas[15]  # 24, where the paper's curve has its maximum
    error = found.curve("prior_precision", "test_error").mean
    assert error[1] == min(error)


@pytest.fixture
def wine(monkeypatch):
    draws = random_splits(np.random.default_rng(0).normal(size=(200, 12)), 2)
    monkeypatch.setattr(wine_figure, "wine_splits", lambda count: draws)
    return wine_figure.FIGURE.smoke


@pytest.fixture
def synthetic(monkeypatch):
    draws = generate_draws(2, 20, 10)
    monkeypatch.setattr(synthetic_figure, "synthetic_draws", lambda count: draws)
    return synthetic_figure.FIGURE.smoke


def cut(folder, name, value):
    """Without its last point the folder is that of a run that was stopped; the times of the files that stay."""
    files = sorted((folder / "jobs").iterdir())
    gone = [path for path in files if json.loads(path.read_text())["settings"][name] == value]
    assert len(gone) == 2  # one for each draw
    for path in gone:
        path.unlink()
    return {path: path.stat().st_mtime_ns for path in files if path not in gone}


def written(result, folder):
    """The bytes of its arrays."""
    result.save(folder)
    return (folder / f"{result.figure}.npz").read_bytes()


@pytest.mark.parametrize("setting", ["prior_precision", "sigma", "width"])
def test_small_curves_of_wine(setting, wine, tmp_path):
    found = wine_figure.curve(wine, setting, Workspace(tmp_path))
    assert len(found.trials) == 4
    assert set(found.values) == {"evidence", "test_error", "train_error", "relative_gradient"}
    assert wine_figure.curve(wine, setting, Workspace(tmp_path, resume=True)) == found
    assert wine_figure.curve(wine, setting, Workspace()) == found
    with pytest.raises(OtherWorkError, match="tuning"):
        wine_figure.curve(replace(wine, lr=0.1), setting, Workspace(tmp_path, resume=True))


def test_evidences_of_a_few_members_at_a_time(wine, monkeypatch):
    """The curvature of all splits need not be in memory at once."""
    whole = wine_figure.curve(wine, "sigma", Workspace())
    monkeypatch.setattr(evidence_curves, "_BUDGET", 1)
    for ours, theirs in zip(wine_figure.curve(wine, "sigma", Workspace()).trials, whole.trials, strict=True):
        assert ours.values == pytest.approx(theirs.values, rel=1e-9)


@pytest.mark.parametrize("name", ["laplace", "vi"])
def test_a_curve_that_was_stopped_goes_on(name, synthetic, tmp_path):
    """What is missing is trained again in the batch that it was in, and comes to the same numbers to the last bit."""
    curve = {"laplace": synthetic_figure.laplace_curve, "vi": synthetic_figure.vi_curve}[name]
    whole = curve(synthetic, Workspace(tmp_path))
    times = cut(tmp_path / name, "prior_precision", 10.0)
    again = curve(synthetic, Workspace(tmp_path, resume=True))
    assert again == whole
    if name == "vi":  # one point a batch: nothing else is trained again
        assert {path: path.stat().st_mtime_ns for path in times} == times
    other = replace(synthetic, width=3)
    with pytest.raises(OtherWorkError, match="tuning"):
        curve(other, Workspace(tmp_path, resume=True))


def test_laplace_does_not_depend_on_the_settings_of_vi(synthetic, tmp_path):
    """What was trained to a minimum is not trained again where VOGN is to take other steps."""
    found = synthetic_figure.laplace_curve(synthetic, Workspace(tmp_path))
    other = replace(synthetic, vi=replace(synthetic.vi, steps=7), evidence_samples=3)
    assert synthetic_figure.laplace_curve(other, Workspace(tmp_path, resume=True)) == found


@pytest.mark.slow
@SMALL
def test_the_synthetic_figure(synthetic, tmp_path):
    """The same bytes twice, and after a curve was cut; verdicts by hand."""
    torch.manual_seed(7)
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    found = synthetic_figure.FIGURE.run(synthetic, Workspace(tmp_path / "jobs"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    torch.manual_seed(8)
    first = written(found, tmp_path / "a")
    assert written(synthetic_figure.FIGURE.run(synthetic), tmp_path / "b") == first
    for name in ("laplace", "vi"):
        cut(tmp_path / "jobs" / name, "prior_precision", 10.0)
    again = synthetic_figure.FIGURE.run(synthetic, Workspace(tmp_path / "jobs", resume=True))
    assert written(again, tmp_path / "c") == first
    arrays = FigureResult.load(tmp_path / "a", "synthetic").arrays
    assert all(np.isfinite(values).all() for values in arrays.values() if values.dtype.kind == "f")
    assert [claim.holds for claim in found.claims[:4]] == [None] * 4  # these draws are not the paper's
    theirs = {**arrays, "source": np.array("the paper's draws")}
    peak, value, curve, errors, *stars, bound = synthetic_figure.claims(theirs, synthetic)
    evidence, delta = arrays["laplace_evidence_mean"], arrays["delta"].tolist()
    best = delta[evidence.argmax()]
    assert peak.holds == (0.63 / STEP < best < 0.632 * STEP)
    assert value.holds == (abs(evidence.max() - (-110.151)) < 0.5)
    assert delta == [0.1, 0.63, 10.0]
    off = [abs(ours / PAPER[place] - 1) for ours, place in zip(evidence, (0, 4, 10), strict=True)]
    assert curve.holds == (max(off) < 0.015)
    assert f"{max(off):.2%}" in curve.measured
    own = arrays["laplace_test_error_mean"]
    gaps = [(own[0] - 0.1462) / 0.0132, (own[1] - 0.1347) / 0.0067, (own[2] - 0.3250) / 0.0054]  # the paper's
    assert errors.holds == (max(map(abs, gaps)) < 2)
    assert f"the 3 that were computed differ by at most {max(map(abs, gaps)):.1f} standard errors" in errors.measured
    largest = arrays["vi_elbo_mean"].argmax()
    assert f"δ = {delta[largest]:.3g} " in bound.measured
    assert f"test error is {arrays['vi_test_error_mean'][largest]:.3g}" in bound.measured
    assert bound.holds is None
    for prefix, (low, near) in (("laplace", stars[:2]), ("vi", stars[2:])):
        chosen, error = arrays[f"{prefix}_evidence_mean"].argmax(), arrays[f"{prefix}_test_error_mean"]
        assert low.holds == (error[chosen] < 1.05 * error.min())
        assert near.holds == (abs(chosen - error.argmin()) <= 1)
    check_fits(arrays, synthetic, best)


def check_fits(arrays, config, chosen):
    """At both ends of the grid and at the chosen δ; bands hold the noise; the weaker the prior, the closer the fit."""
    assert arrays["fit_delta"].tolist() == [0.1, chosen, 10.0]
    assert arrays["fit_mean"].shape == arrays["fit_std"].shape == (3, config.resolution)
    assert (arrays["fit_std"] >= config.sigma).all()
    draws = synthetic_figure.synthetic_draws(2)
    np.testing.assert_array_equal(arrays["fit_inputs"], draws.train_inputs[0, :, 0])
    np.testing.assert_array_equal(arrays["fit_targets"], draws.train_targets[0, :, 0])
    fits = [np.interp(arrays["fit_inputs"], arrays["fit_x"], mean) for mean in arrays["fit_mean"]]
    error = [np.square(fit - arrays["fit_targets"]).mean() for fit in fits]
    assert error[0] < error[2]


def test_the_figure_of_wine(wine, tmp_path):
    """The same bytes twice, and after a curve was cut; verdicts by hand."""
    state = torch.get_rng_state()
    found = wine_figure.FIGURE.run(wine, Workspace(tmp_path / "jobs"))
    assert torch.equal(torch.get_rng_state(), state)
    first = written(found, tmp_path / "a")
    cut(tmp_path / "jobs" / "sigma", "sigma", 0.64)
    for path in sorted((tmp_path / "jobs" / "width").rglob("*"), reverse=True):  # as if the last had not begun
        path.rmdir() if path.is_dir() else path.unlink()
    again = wine_figure.FIGURE.run(wine, Workspace(tmp_path / "jobs", resume=True))
    assert written(again, tmp_path / "b") == first
    assert written(wine_figure.FIGURE.run(wine), tmp_path / "c") == first
    arrays = found.arrays
    assert arrays["width_values"].tolist() == [1, 3]
    peak, _, _, low, *others = found.claims
    best = arrays["prior_precision_values"][arrays["prior_precision_evidence_mean"].argmax()]
    assert peak.holds is None  # these splits are not the paper's
    theirs = wine_figure.claims({**arrays, "source": np.array("the paper's splits")}, wine)
    assert theirs[0].holds == (24 / 1.45 < best < 24 * 1.45)
    for claim, setting in zip((low, *others), ("prior_precision", "sigma", "width"), strict=True):
        chosen, error = arrays[f"{setting}_evidence_mean"].argmax(), arrays[f"{setting}_test_error_mean"]
        near = setting != "prior_precision" and abs(chosen - error.argmin()) <= 1
        assert claim.holds == (near or error[chosen] < 1.02 * error.min())


CURVE = PublishedCurve((0.1, 1.0, 10.0, 100.0), (-9.0, -10.0, -20.0, -40.0), (4.0, 1.0, 2.0, 5.0), (1.0, 0.1, 0.2, 0.5))


def test_an_evidence_beside_the_papers():
    """Within the bar at the δ that both have, from a start on; elsewhere it is only told."""
    deltas, own = np.array([0.1, 0.5, 1.002, 10.0]), np.array([-10.8, -7.0, -10.1, -20.3])
    claim = evidence_claim("it", own, deltas, CURVE, 0.02, True, start=1.0)
    assert (claim.paper, claim.holds) == ("3 values (here: each within 2 %)", True)
    assert claim.measured == "the 2 that were computed differ by at most 1.50% (below δ = 1 up to 20.0%)"
    assert evidence_claim("it", own, deltas, CURVE, 0.014, True, start=1.0).holds is False
    assert evidence_claim("it", own, deltas, CURVE, 0.02, True).holds is False
    assert evidence_claim("it", own, deltas, CURVE, 0.02, False, start=1.0).holds is None
    none = evidence_claim("it", own[:2], deltas[:2], CURVE, 0.02, True, start=1.0)
    assert (none.measured, none.holds) == ("none of them was computed", None)


@pytest.mark.parametrize(("last", "holds"), [(2.39, True), (2.41, False)])
def test_errors_beside_the_papers(last, holds):
    """Within two standard errors, and the largest share is said."""
    deltas, own = np.array([0.5, 1.0, 10.0]), np.array([9.0, 1.15, last])
    claim = error_claim("it", own, deltas, CURVE, True)
    assert claim.holds is holds
    words = "the 2 that were computed differ by at most"
    assert claim.measured == f"{words} {(last - 2) / 0.2:.1f} standard errors, or {last / 2 - 1:.1%}"
    assert error_claim("it", own, deltas, CURVE, False).holds is None
    assert error_claim("it", own[:1], deltas[:1], CURVE, True).measured == "none of them was computed"


def test_stars_of_curves():
    """The choice of the evidence beside that of the test error; a point that diverged is none."""
    arrays = {
        "a_evidence_mean": np.array([-3.0, np.nan, -1.0, -2.0]),
        "a_test_error_mean": np.array([1.0, np.nan, 2, 4]),
    }
    stars = Stars.of(arrays, "a")
    assert (stars.evidence, stars.test, stars.excess, stars.near) == (2, 0, 1.0, False)


@pytest.mark.parametrize("figure", [synthetic_figure.FIGURE, wine_figure.FIGURE], ids=lambda figure: figure.name)
def test_presets(figure):
    assert figure.preset("paper") == type(figure.paper)()
    with pytest.raises(InputError, match="paper or smoke"):
        figure.preset("large")


def test_unknown_settings_are_refused():
    with pytest.raises(InputError, match="expected one of prior_precision, sigma, width"):
        wine_figure.curve(wine_figure.FIGURE.smoke, "depth", Workspace())
