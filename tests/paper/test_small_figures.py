"""The figures in one and two dimensions: their arrays by brute force, saved and read again, the same twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dnn2gp.paper.datasets.folder import find
from dnn2gp.paper.figure import FigureResult
from dnn2gp.paper.figures import moons, snelson, two_d
from dnn2gp.plots.report.section import Claim
from dnn2gp.support.errors import FileFormatError, InputError

NO_SNELSON = pytest.mark.skipif(find("snelson/train_inputs") is None, reason="Snelson's data are not in DNN2GP_DATA")
FIGURES = {"moons": moons.FIGURE, "two_d": two_d.FIGURE, "snelson": snelson.FIGURE}
CASES = [pytest.param(name, marks=NO_SNELSON if name == "snelson" else ()) for name in FIGURES]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
@pytest.mark.parametrize("name", CASES)
def test_two_runs_give_identical_files_and_leave_torch_as_it_was(name, tmp_path):
    figure = FIGURES[name]
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = figure.run(figure.smoke)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    first.save(tmp_path / "a")
    figure.run(figure.smoke).save(tmp_path / "b")
    assert (tmp_path / "a" / f"{name}.npz").read_bytes() == (tmp_path / "b" / f"{name}.npz").read_bytes()
    again = FigureResult.load(tmp_path / "a", name)
    assert again.claims == first.claims
    assert again.config == first.config
    assert again.config["seed"] == 0
    assert all(np.array_equal(again.arrays[key], values) for key, values in first.arrays.items())
    assert all(np.isfinite(values).all() for values in first.arrays.values())
    with pytest.raises(InputError, match="paper or smoke"):
        figure.preset("large")


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
def test_kernel_and_points_of_the_plane():
    """The kernel is the features' product; A and D have the least margin of their classes, B and C the most."""
    found = two_d.FIGURE.run(two_d.FIGURE.smoke).arrays
    np.testing.assert_allclose(found["kernel"], found["features"] @ found["features"].T, rtol=1e-9, atol=1e-12)
    assert found["features"].shape == (20, 33)
    margins = np.where(found["labels"] == 1, 1, -1) * found["outputs"]
    a, b, c, d = found["points"]
    for border, inside, label in ((a, b, 0), (d, c, 1)):
        own = margins[found["labels"] == label]
        assert found["labels"][border] == found["labels"][inside] == label
        assert margins[border] == own.min()
        assert margins[inside] == own.max()


def test_uncertainty_of_the_plane_is_judged_along_the_border():
    """By loops over a plane of 5 × 6 points whose middle has the data."""
    x, y = np.linspace(0, 5, 6), np.linspace(0, 4, 5)
    inputs = np.array([[1.0, 1.0], [3.0, 2.5]])
    generator = np.random.default_rng(0)
    maps = {name: generator.uniform(0.1, 1, size=(5, 6)) for name in ("aleatoric", "epistemic", "latent")}
    mean = generator.choice([0.1, 0.45, 0.55, 0.9], size=(5, 6))
    mean[0, 0] = mean[1, 1] = 0.45
    rim, middle = [], []
    for row in range(5):
        for column in range(6):
            if abs(mean[row, column] - 0.5) < 0.1:
                corners = (row in (0, 4)) + (column in (0, 5))  # those of the plane are counted twice
                rim += corners * [maps["epistemic"][row, column]]
                if 1 <= x[column] <= 3 and 1 <= y[row] <= 2.5:
                    middle.append(maps["epistemic"][row, column])
    arrays = {"x": x, "y": y, "inputs": inputs, "mean": mean, **maps}
    arrays |= {"own_epistemic": np.ones(2), "own_latent": np.ones(2)}
    noise, claim, _ = moons.claims(arrays, moons.MoonsConfig())
    assert noise.holds is None  # it cannot be otherwise
    ratio = np.mean(rim) / np.mean(middle)
    assert f"at the rim of the plane it is {ratio:.3g} times that near the data" in claim.measured
    assert claim.holds is bool(ratio > 1)
    empty = moons.claims({**arrays, "mean": np.full((5, 6), 0.9)}, moons.MoonsConfig())
    assert [own.holds for own in empty] == [None] * 3
    assert not any("nan" in own.measured for own in empty)


@NO_SNELSON
@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
def test_bands_of_snelson_hold_the_noise():
    """No band is narrower than σ; the claims count the points of the grid."""
    config = snelson.FIGURE.smoke
    found = snelson.FIGURE.run(config)
    assert not ((found.arrays["inputs"] >= 1.5) & (found.arrays["inputs"] <= 3.0)).any()
    for panel in ("laplace", "vi"):
        for name in ("dnn2gp", "dnn", "gp_rbf"):
            assert (found.arrays[f"{panel}_{name}_std"] >= config.sigma - 1e-12).all()
    x = found.arrays["x"]
    gap = (x >= 1.5) & (x <= 3.0)
    wider = found.arrays["laplace_dnn2gp_std"][gap] > found.arrays["laplace_dnn_std"][gap]
    assert f"DNN's at {wider.mean():.0%}" in found.claims[0].measured
    assert snelson._intervals(np.arange(6.0), np.array([1, 0, 1, 1, 0, 1], dtype=bool)) == "0 … 0, 2 … 3, 5 … 5"


def test_results_that_are_not_whole(tmp_path):
    claim = Claim("a", "b", "c", None)
    FigureResult("one", {}, {"x": np.arange(3)}, (claim,), 1.0).save(tmp_path)
    (tmp_path / "one.npz").write_bytes((tmp_path / "one.npz").read_bytes()[:30])
    with pytest.raises(FileFormatError, match="one"):
        FigureResult.load(tmp_path, "one")
    with pytest.raises(FileFormatError, match="two"):
        FigureResult.load(tmp_path, "two")
