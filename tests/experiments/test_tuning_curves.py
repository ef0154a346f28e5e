"""The tuning curves of Figs. 5 and 6: on the paper's draws beside what the paper has; small ones everywhere."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dnn2gp.datasets import generate_draws
from dnn2gp.datasets.folder import find
from dnn2gp.datasets.wine import random_splits
from dnn2gp.errors import InputError
from dnn2gp.experiments import tune_synthetic, tune_wine

# The mean log evidence that the paper's runs have at δ = 10^(−1 + k/5), k = 0, …, 15 (10 draws, Laplace).
PAPER = [
    *(-117.1662, -114.4504, -112.5305, -110.9302, -110.151, -110.1911, -110.7761, -111.8252),
    *(-112.9361, -113.3754, -113.4414, -114.4901, -115.9143, -117.5651, -118.9082, -119.3267),
]
STEP = 10**0.2 * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.skipif(find("synthetic_regression.npz") is None, reason="the paper's draws are not in DNN2GP_DATA")
def test_the_papers_curve_on_the_papers_draws():
    """21 × 10 trainings to a minimum: the maximum within a grid step, the same values, nearly the best test error."""
    found = tune_synthetic.run(tune_synthetic.TuneSyntheticConfig())
    curve, error = found.curve("prior_precision"), found.curve("prior_precision", "test_error")
    assert len(found.trials) == 210
    assert 0.63 / STEP < found.best["prior_precision"] < 0.632 * STEP
    assert abs(found.evidence - (-110.15)) < 0.5
    for ours, theirs in zip(curve.mean[5:], PAPER, strict=True):
        assert ours == pytest.approx(theirs, rel=0.015)
    chosen = error.mean[curve.settings.index(found.best["prior_precision"])]
    assert chosen < 1.05 * min(error.mean)
    gradients = torch.tensor([trial.values["relative_gradient"] for trial in found.trials])
    assert gradients.median() < 1e-4
    assert gradients.max() < 0.05


@pytest.mark.slow
@pytest.mark.skipif(find("wine_splits_standardised.npz") is None, reason="the paper's splits are not in DNN2GP_DATA")
def test_the_papers_maximum_on_the_papers_splits_of_wine():
    """Some of the 30 δ on some of the 20 splits: the largest evidence at the paper's δ, and there the least error."""
    config = tune_wine.TuneWineConfig()
    few = replace(config, deltas=tuple(config.deltas[place] for place in (11, 15, 19)), num_splits=4)
    found = tune_wine.run(few)
    assert found.best["prior_precision"] == config.deltas[15]  # 24, where the paper's curve has its maximum
    error = found.curve("prior_precision", "test_error").mean
    assert error[1] == min(error)


@pytest.mark.parametrize("setting", ["prior_precision", "sigma", "width"])
def test_small_curves_of_wine(setting, tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    draws = random_splits(generator.normal(size=(200, 12)), 2)
    monkeypatch.setattr(tune_wine, "wine_splits", lambda count: draws)
    config = tune_wine.TuneWineConfig.preset("smoke", setting)
    found = tune_wine.run(config, tmp_path)
    assert len(found.trials) == 4
    assert set(found.values) == {"evidence", "test_error", "train_error", "relative_gradient"}
    assert tune_wine.run(config, tmp_path, resume=True) == found
    assert tune_wine.run(config) == found
    with pytest.raises(InputError, match="holds another tuning"):
        tune_wine.run(replace(config, lr=0.1), tmp_path, resume=True)


def test_a_curve_that_was_stopped_goes_on(tmp_path, monkeypatch):
    """Without its last point the folder is that of a run that was stopped; only that point is trained again."""
    draws = generate_draws(2, 20, 10)
    monkeypatch.setattr(tune_synthetic, "synthetic_draws", lambda count: draws)
    config = tune_synthetic.TuneSyntheticConfig.preset("smoke")
    whole = tune_synthetic.run(config, tmp_path)
    files = sorted((tmp_path / "jobs").iterdir())
    gone = [path for path in files if json.loads(path.read_text())["settings"]["prior_precision"] == 10.0]
    for path in gone:
        path.unlink()
    times = {path: path.stat().st_mtime_ns for path in files if path not in gone}
    again = tune_synthetic.run(config, tmp_path, resume=True)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    for ours, theirs in zip(again.trials, whole.trials, strict=True):
        assert ours.settings == theirs.settings
        assert ours.values == pytest.approx(theirs.values, rel=1e-6)
