"""The demo from end to end in its small form, and its parts."""

from __future__ import annotations

import dataclasses
import io
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from rich.console import Console
from torch.nn.functional import cross_entropy

from dnn2gp.apps.demo import DemoConfig, DemoResult, build_network, run
from dnn2gp.apps.demo.job import draw, some_of_each
from dnn2gp.apps.demo.training import load_data, train
from dnn2gp.gp.storage import load
from dnn2gp.support.errors import InputError, NotAMinimumWarning

FILES = {"familiarity.png", "kernel.png", "posterior_mean.png", "uncertainty.png", "gp.safetensors"}
SMOKE = DemoConfig.preset("smoke")


@dataclasses.dataclass
class Run:
    """One finished run: what it gave, printed and left in the global random state."""

    result: DemoResult
    printed: str
    out: Path
    random_state_kept: bool


def run_smoke(out: Path, seed: int = 0) -> Run:
    console = Console(file=io.StringIO(), width=140)
    before = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAMinimumWarning)
        result = run(dataclasses.replace(SMOKE, out=out, seed=seed), console)
    assert isinstance(console.file, io.StringIO)
    return Run(result, console.file.getvalue(), out, torch.equal(before, torch.get_rng_state()))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_smoke(tmp_path_factory.mktemp("demo") / "new" / "folder")


@pytest.mark.slow
def test_files(smoke: Run) -> None:
    assert {path.name for path in smoke.out.iterdir()} == FILES
    assert {path.name for path in smoke.result.files} == FILES
    for path in smoke.result.files:
        if path.suffix == ".png":
            assert imread(path).std() > 0.01, f"{path.name} is blank"


def _test_set(smoke: Run):
    """The saved GP, the test digits, and the probabilities of the trained network by plain torch."""
    gp = load(smoke.out / "gp.safetensors", build_network(SMOKE.channels))
    digits = load_data(SMOKE.num_train, torch.Generator().manual_seed(0))
    network = build_network(SMOKE.channels)
    network.load_state_dict(gp.network.state())
    return gp, digits, network


def test_scores(smoke: Run) -> None:
    gp, digits, network = _test_set(smoke)
    scores = smoke.result.scores
    assert list(scores) == ["network", "GP"]
    with torch.no_grad():
        outputs = network(digits.test_images)
    assert scores["network"].nll == pytest.approx(cross_entropy(outputs, digits.test_labels).item(), rel=1e-9)
    assert scores["network"].accuracy == (outputs.argmax(1) == digits.test_labels).double().mean().item()
    found = -gp.predict(digits.test_images).log_prob(digits.test_labels).mean().item()
    assert scores["GP"].nll == pytest.approx(found, rel=1e-3)
    assert scores["GP"].nll < scores["network"].nll + 0.01
    assert abs(scores["GP"].accuracy - scores["network"].accuracy) < 0.02


def test_foreign_images(smoke: Run) -> None:
    """AUROC by counting pairs, and shares by NumPy."""
    gp, digits, network = _test_set(smoke)
    other = np.rot90(digits.test_images.numpy(), 1, axes=(2, 3)).copy()
    with torch.no_grad():
        sure = torch.softmax(network(torch.from_numpy(other)), 1).amax(1).numpy()
    own = smoke.result.foreign["turned digits"]
    assert own.confident == pytest.approx((sure > 0.9).mean())
    known, doubt = (gp.outlier_score(x).numpy() for x in (digits.test_images, torch.from_numpy(other)))
    pairs = (doubt[:, None] > known).mean() + 0.5 * (doubt[:, None] == known).mean()
    assert own.gp_auroc == pytest.approx(pairs, rel=1e-9)
    limit = gp.outlier_threshold()
    assert own.unfamiliar == pytest.approx((doubt > limit).mean())
    assert own.gp_auroc > own.network_auroc + 0.1
    photographs = smoke.result.foreign["photographs"]
    assert photographs.gp_auroc > photographs.network_auroc + 0.1


def test_everything_is_printed(smoke: Run) -> None:
    result, printed = smoke.result, smoke.printed
    for name, score in result.scores.items():
        lines = [line for line in printed.splitlines() if f"│ {name} " in line]
        assert any(f"{score.accuracy:.1%}" in line and f"{score.nll:.3f}" in line for line in lines)
    for name, own in result.foreign.items():
        lines = [line for line in printed.splitlines() if f"│ {name} " in line]
        assert any(f"{own.confident:.1%}" in line and f"{own.unfamiliar:.1%}" in line for line in lines)
    assert f"{result.evidence.value:.2f}" in printed
    for part in (*result.seconds, *(path.name for path in result.files)):
        assert part in printed


def test_the_saved_gp_has_the_evidence_that_was_printed(smoke: Run) -> None:
    gp, _, _ = _test_set(smoke)
    assert gp.evidence().value == pytest.approx(smoke.result.evidence.value, rel=1e-9)
    assert gp.calibration == smoke.result.gp.calibration


@pytest.mark.slow
def test_pictures_show_the_test_digits(smoke: Run) -> None:
    gp = load(smoke.out / "gp.safetensors", build_network(SMOKE.channels))
    digits = load_data(SMOKE.num_train, torch.Generator().manual_seed(0))
    figures = draw(gp, gp.predict(digits.test_images), digits, per_class=2)
    few = some_of_each(digits.test_labels, 2)  # in order of the classes already
    images = digits.test_images[few]
    kernel = np.asarray(figures["kernel.png"].axes[0].get_images()[0].get_array())
    full = gp.kernel.full(images)
    assert np.allclose(kernel, torch.einsum("nkmk->nm", full).numpy())
    mean = np.asarray(figures["posterior_mean.png"].axes[0].get_images()[0].get_array())
    assert np.allclose(mean, gp.mean(images).numpy())


@pytest.mark.slow
def test_same_seed_same_numbers_and_other_seed_others(
    smoke: Run, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for name in FILES:
        (tmp_path / name).write_text("old")
    again = run_smoke(tmp_path)
    request.getfixturevalue("blank_pictures")
    other = run_smoke(tmp_path / "other", seed=1)
    assert again.result.scores == smoke.result.scores
    assert again.result.evidence == smoke.result.evidence
    assert other.result.scores != smoke.result.scores
    assert smoke.random_state_kept
    assert again.random_state_kept
    for name in FILES - {"gp.safetensors"}:
        assert (tmp_path / name).read_bytes() == (smoke.out / name).read_bytes()


def test_a_folder_that_cannot_be_made_stops_the_run_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("dnn2gp.apps.demo.job.train", lambda *_: pytest.fail("trained"))
    with pytest.raises(InputError, match="Cannot write to the folder"):
        run(dataclasses.replace(SMOKE, out=tmp_path / "file" / "out"), Console(file=io.StringIO()))


def test_data_are_split_without_overlap() -> None:
    digits = load_data(1200, torch.Generator().manual_seed(3))
    assert len(digits.train_labels) == 1200
    assert len(digits.test_labels) == 597
    assert digits.train_images.min() == 0
    assert digits.train_images.max() == 1
    rows = torch.cat([digits.train_images, digits.test_images]).flatten(1)
    assert len(torch.unique(rows, dim=0)) == 1797


def test_network_comes_from_its_seed_alone() -> None:
    torch.manual_seed(5)
    first = torch.cat([w.flatten() for w in build_network(seed=2).parameters()])
    torch.manual_seed(6)
    second = torch.cat([w.flatten() for w in build_network(seed=2).parameters()])
    other = torch.cat([w.flatten() for w in build_network(seed=3).parameters()])
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_training_gives_the_threads_back() -> None:
    before = torch.get_num_threads()
    digits, network = load_data(20, torch.Generator().manual_seed(0)), build_network((1, 1))
    config = dataclasses.replace(SMOKE, epochs=1)
    train(network, digits.train_images, digits.train_labels, config, torch.Generator().manual_seed(0))
    assert torch.get_num_threads() == before


def test_some_of_each_class() -> None:
    labels = torch.tensor([1, 0, 0, 1, 0, 9])
    assert some_of_each(labels, 2).tolist() == [1, 2, 0, 3, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"num_train": 1700}, "num_train"), ({"epochs": -1}, "epochs"), ({"per_class": 0}, "per_class")],
)
def test_configurations_that_cannot_be(tmp_path: Path, change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(dataclasses.replace(SMOKE, out=tmp_path, **change))


def test_presets_have_names() -> None:
    assert DemoConfig.preset("default") == DemoConfig()
    assert DemoConfig.preset("smoke").num_train < DemoConfig().num_train
    with pytest.raises(InputError, match="default, smoke"):
        DemoConfig.preset("fast")
