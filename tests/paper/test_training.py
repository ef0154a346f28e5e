"""`dnn2gp train`: the table, the files, and a training that is killed and goes on."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import forked
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from dnn2gp.apps.cli import app
from dnn2gp.optim.checkpoints import load_checkpoint
from dnn2gp.paper.datasets import load_images
from dnn2gp.paper.networks import lenet5
from dnn2gp.paper.training import TrainConfig, Training, run
from dnn2gp.support.errors import DivergedError, InputError
from dnn2gp.support.folders import claimed

SMOKE = ("train", "mnist", "--preset", "smoke")


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """scikit-learn's digits, enlarged, as mnist.npz in a folder of their own."""
    pixels, labels = load_digits(return_X_y=True)
    images = np.kron(pixels.reshape(-1, 8, 8), np.ones((3, 3)))[:, :, :]
    images = np.pad(images * 255 / 16, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    folder = tmp_path / "data"
    folder.mkdir()
    labels = labels.astype(np.uint8)
    np.savez(
        folder / "mnist.npz", x_train=images[:1200], y_train=labels[:1200], x_test=images[1200:], y_test=labels[1200:]
    )
    monkeypatch.setenv("DNN2GP_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    return folder


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(path)["network"]


@pytest.mark.slow
def test_command(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, [*SMOKE, "--compare", "adam", "--compare", "ogn", "--out", str(out)])
    assert result.exit_code == 0, result.output
    for word in ("vogn", "adam", "ogn", "average of 2 networks", "NLL", "ECE"):
        assert word in result.output
    scores = json.loads((out / "results.json").read_text())["scores"]
    assert [(score["method"], score["prediction"].split()[0]) for score in scores] == [
        ("vogn", "network"), ("vogn", "average"), ("adam", "network"), ("ogn", "network"), ("ogn", "average"),
    ]  # fmt: skip
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == [
        ".dnn2gp.lock", *["checkpoint.safetensors"] * 3, "results.json",
    ]  # fmt: skip


@pytest.mark.slow
def test_it_learns(digits: Path, tmp_path: Path) -> None:
    """Most digits after a few epochs of few images, with a posterior that is cold enough for that."""
    result = run(TrainConfig(epochs=6, batch_size=32, num_train=1200, networks=3, temperature=0.02, out=tmp_path))
    assert all(score.accuracy > 0.85 for score in result.scores)


def test_a_training_that_diverges_keeps_its_last_good_state(digits: Path, tmp_path: Path) -> None:
    config = replace(TrainConfig.preset("smoke"), out=tmp_path, lr=1.0, initial_precision=1e-12, momentum=0.0)
    with pytest.raises(DivergedError, match="The state before"):
        run(config)
    kept = load_checkpoint(tmp_path / "vogn" / "checkpoint.safetensors")
    assert all(value.isfinite().all() for value in kept["network"].values())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vogn", "adam"])
def test_a_killed_training_goes_on_to_the_same_weights(method: str, digits: Path, tmp_path: Path) -> None:
    """kill −9 in mid-epoch; the resumed run ends with the weights of an uninterrupted one, to the last bit."""
    arguments = [*SMOKE, "--optimizer", method, "--epochs", "6"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    command = ["-m", "dnn2gp", *arguments, "--out"]
    forked.run([*command, whole], checked=False)

    process = forked.Process([*command, cut], checked=False)
    path = cut / method / "checkpoint.safetensors"
    limit = time.monotonic() + 60
    while time.monotonic() < limit and not _in_mid_epoch(path):
        time.sleep(0.005)
    process.kill()
    killed = load_checkpoint(path)
    assert (killed["epoch"], killed["batch"]) != (6, 0)
    forked.run([*command, cut, "--resume"], checked=False)
    expected, found = weights(whole / method / "checkpoint.safetensors"), weights(path)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as in a terminal, also where tests run in the background and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_saves_the_training_as_it_is(digits: Path, tmp_path: Path) -> None:
    """Also before the first checkpoint was due; a second Ctrl-C would stop at once."""
    config = replace(TrainConfig.preset("smoke"), out=tmp_path / "cut", epochs=3, checkpoint_seconds=1e9)
    training = Training(replace(config, out=tmp_path / "whole"), load_images("mnist"), resume=False)
    training.path.parent.mkdir(parents=True)
    training.run()
    again = Training(config, load_images("mnist"), resume=False)
    again.path.parent.mkdir(parents=True)
    step, count = again._step, 0

    def interrupted(*arguments) -> None:
        nonlocal count
        count += 1
        if count == 4:
            signal.raise_signal(signal.SIGINT)
        step(*arguments)

    again._step = interrupted
    with pytest.raises(KeyboardInterrupt):
        again.run()
    assert load_checkpoint(again.path)["batch"] == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = Training(config, load_images("mnist"), resume=True)
    resumed.run()
    expected = weights(training.path)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed.path).items())


def _in_mid_epoch(path: Path) -> bool:
    if not path.exists():
        return False
    tree = load_checkpoint(path)
    return tree["epoch"] >= 1 and tree["batch"] > 0


def test_a_checkpoint_of_other_settings_is_refused(digits: Path, tmp_path: Path) -> None:
    config = replace(TrainConfig.preset("smoke"), out=tmp_path / "out", epochs=1)
    run(config)
    with pytest.raises(InputError, match="--resume"):
        run(config)
    with pytest.raises(InputError, match="prior_precision"):
        run(replace(config, prior_precision=2.0), resume=True)
    own = load_images("mnist")
    Training(config, own, resume=True)
    for other in (
        replace(own, train_images=own.train_images.flip(3)),
        replace(own, train_labels=own.train_labels.flip(0)),
    ):
        with pytest.raises(InputError, match="images"):
            Training(config, other, resume=True)


def test_settings_that_mean_nothing(digits: Path, tmp_path: Path) -> None:
    for settings, word in (
        ({"method": "sgd"}, "optimizer"),
        ({"epochs": 0}, "epochs"),
        ({"num_train": 3}, "batch_size"),
        ({"temperature": 0.0}, "temperature"),
        ({"lr": 3.0}, "lr"),
        ({"precision_lr": 2.0}, "precision_lr"),
        ({"momentum": 1.0}, "momentum"),
        ({"data": "svhn"}, "data: expected one of"),
    ):
        with pytest.raises(InputError, match=word):
            run(replace(TrainConfig.preset("smoke"), out=tmp_path / "out", **settings))
        assert word.startswith("data") or not (tmp_path / "out").exists()  # nothing is left of it
    with pytest.raises(InputError, match="compare"):
        run(replace(TrainConfig.preset("smoke"), out=tmp_path / "out"), compare=("vogn",))


def test_lenet5_has_the_weights_of_the_paper() -> None:
    assert sum(w.numel() for w in lenet5().parameters()) == 44_426
    assert sum(w.numel() for w in lenet5(channels=3, side=32).parameters()) == 62_006
    assert torch.equal(lenet5(seed=3)[0].weight, lenet5(seed=3)[0].weight)
    assert not torch.equal(lenet5(seed=3)[0].weight, lenet5(seed=4)[0].weight)


def test_a_second_training_in_the_same_folder_is_refused(digits: Path, tmp_path: Path) -> None:
    """Both would write the same checkpoints; with --resume too."""
    config = replace(TrainConfig.preset("smoke"), out=tmp_path, method="adam")
    with claimed(tmp_path):
        for resume in (False, True):
            with pytest.raises(InputError, match="out"):
                run(config, resume=resume)
    run(config)  # once the first has ended


@pytest.mark.parametrize("rate", [1e30, 1e38])
def test_an_adam_that_diverges_says_so(rate: float, digits: Path, tmp_path: Path) -> None:
    config = replace(TrainConfig.preset("smoke"), out=tmp_path, method="adam", lr=rate)
    with pytest.raises(DivergedError, match="lr"):
        run(config)
    assert not (tmp_path / "results.json").exists()


def test_an_adam_that_diverges_in_its_last_step_says_so(digits: Path, tmp_path: Path) -> None:
    training = Training(
        replace(TrainConfig.preset("smoke"), out=tmp_path, method="adam"), load_images("mnist"), resume=False
    )
    with torch.no_grad():
        training.network.get_parameter("0.weight").fill_(torch.nan)
    with pytest.raises(DivergedError, match="lr"):
        training.scores()
