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
from dnn2gp.support.errors import DivergedError, InputError, NotAMinimumWarning

FILES = {"kernel.png", "posterior_mean.png", "uncertainty.png", "uncertainty_maps.png", "gp.safetensors"}
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


def test_the_network_ends_at_a_minimum(smoke: Run) -> None:
    assert smoke.result.diagnosis.details.relative_gradient < 0.05


def test_scores(smoke: Run) -> None:
    scores = smoke.result.scores
    assert list(scores) == ["network (softmax)", "GP, delta method", "GP, probit", "GP, Monte Carlo"]
    network, delta, probit, sampled = scores.values()
    assert network.accuracy > 0.8
    assert delta.nll == pytest.approx(network.nll, rel=0.1), "at a minimum the GP's mean is the network"
    for averaged in (probit, sampled):
        assert averaged.confidence < network.confidence
        assert averaged.confidence_rotated < network.confidence_rotated
        assert abs(averaged.accuracy - network.accuracy) < 0.05


def test_evidence_is_the_sum_of_the_printed_terms(smoke: Run) -> None:
    evidence = smoke.result.evidence
    terms = (evidence.log_likelihood, -evidence.prior_penalty, -evidence.complexity)
    assert evidence.value == pytest.approx(sum(terms))
    for value in (*terms, evidence.value):
        assert f"{value:.1f}" in smoke.printed


def test_everything_is_printed(smoke: Run) -> None:
    result, printed = smoke.result, smoke.printed
    for name, score in result.scores.items():
        (line,) = [line for line in printed.splitlines() if name in line]
        for value in (
            f"{score.accuracy:.1%}",
            f"{score.nll:.3f}",
            f"{score.ece:.3f}",
            f"{score.confidence_rotated:.1%}",
        ):
            assert value in line
    for line in str(result.diagnosis).splitlines():
        assert line.split(":")[0].strip()[:40] in printed
    for cost in result.costs:
        (line,) = [line for line in printed.splitlines() if cost.space in line and "matrix" in line]
        assert ("used" in line) == (cost.space == result.space)
    for part in (*result.seconds, *(path.name for path in result.files)):
        assert part in printed


def test_the_saved_gp_predicts_the_same(smoke: Run) -> None:
    gp = load(smoke.out / "gp.safetensors", build_network(SMOKE.channels))
    digits = load_data(SMOKE.num_train, torch.Generator().manual_seed(0))
    prediction = gp.predict(digits.test_images)
    of_label = prediction.probit().gather(1, digits.test_labels[:, None])
    assert -of_label.log().mean().item() == pytest.approx(smoke.result.scores["GP, probit"].nll, rel=1e-6)
    assert gp.evidence().value == pytest.approx(smoke.result.evidence.value, rel=1e-9)


def test_the_saved_network_is_the_trained_one(smoke: Run) -> None:
    gp = load(smoke.out / "gp.safetensors", build_network(SMOKE.channels))
    digits = load_data(SMOKE.num_train, torch.Generator().manual_seed(0))
    outputs = gp.predict(digits.test_images).outputs
    expected = smoke.result.scores["network (softmax)"].nll
    assert cross_entropy(outputs, digits.test_labels).item() == pytest.approx(expected, rel=1e-9)


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
    epistemic = np.asarray(figures["uncertainty_maps.png"].axes[0].get_images()[0].get_array())
    assert np.allclose(epistemic, gp.predict(images).epistemic.numpy())


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
    config = dataclasses.replace(SMOKE, adam_epochs=1, lbfgs_steps=10)
    train(network, digits.train_images, digits.train_labels, config, torch.Generator().manual_seed(0))
    assert torch.get_num_threads() == before


def test_some_of_each_class() -> None:
    labels = torch.tensor([1, 0, 0, 1, 0, 9])
    assert some_of_each(labels, 2).tolist() == [1, 2, 0, 3, 5]


@pytest.mark.parametrize(
    ("change", "message"), [({"num_train": 1700}, "num_train"), ({"prior_precision": 0.0}, "prior_precision")]
)
def test_configurations_that_cannot_be(tmp_path: Path, change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(dataclasses.replace(SMOKE, out=tmp_path, **change))


def test_presets_have_names() -> None:
    assert DemoConfig.preset("default") == DemoConfig()
    assert DemoConfig.preset("smoke").num_train < DemoConfig().num_train
    with pytest.raises(InputError, match="default, smoke"):
        DemoConfig.preset("fast")


def test_a_training_that_diverges_is_no_demo(tmp_path: Path) -> None:
    config = dataclasses.replace(DemoConfig.preset("smoke"), out=tmp_path, prior_precision=1e308)
    with pytest.raises(DivergedError, match="prior_precision"):
        run(config, Console(quiet=True))
