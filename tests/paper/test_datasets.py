"""Loaders: from a folder, from the public source, or not at all and with words that say what to put where."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dnn2gp.paper.datasets import (
    bent_clouds,
    generate_draws,
    half_moons,
    images,
    load_images,
    load_snelson,
    synthetic_draws,
    wine_splits,
)
from dnn2gp.paper.datasets import folder as download
from dnn2gp.paper.datasets import snelson as snelson_module
from dnn2gp.paper.datasets.folder import find
from dnn2gp.support.errors import FileFormatError, InputError

_EMPTY = (((28, 28), 0), ((), 3))


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with nothing in it."""
    monkeypatch.setenv("DNN2GP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def digits(empty: Path) -> Path:
    """A data folder with a small mnist.npz."""
    generator = np.random.default_rng(0)
    parts = {"train": 1200, "test": 300}
    arrays = {f"x_{name}": generator.integers(0, 256, (count, 28, 28), dtype=np.uint8) for name, count in parts.items()}
    arrays |= {f"y_{name}": generator.integers(0, 10, count, dtype=np.uint8) for name, count in parts.items()}
    arrays["x_train"][0, 0, 0] = 255
    np.savez(empty / "mnist.npz", **arrays)
    return empty


# Images -------------------------------------------------------------------------------------------------------------


def test_images(digits: Path) -> None:
    images = load_images("mnist")
    assert images.train_images.shape == (1200, 1, 28, 28)
    assert images.train_images.max() == 1
    assert images.test_labels.dtype == torch.int64
    (digits / "mnist.npz").write_bytes((digits / "mnist.npz").read_bytes()[:1000])
    with pytest.raises(FileFormatError, match="set of images"):
        load_images("mnist")
    (digits / "mnist.npz").write_bytes(b"no archive at all")
    with pytest.raises(FileFormatError, match="npz") as caught:
        load_images("mnist")
    assert "pickle" not in str(caught.value)  # numpy's advice
    np.savez(digits / "mnist.npz", **{key: np.zeros((2, 3)) for key in ("x_train", "y_train", "x_test", "y_test")})
    with pytest.raises(FileFormatError, match="expected x_train as uint8"):
        load_images("mnist")


def test_images_that_cannot_be_had(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (digits / "mnist.npz").unlink()

    def offline(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("dnn2gp.paper.datasets.images.fetch_openml", offline)
    with pytest.raises(InputError, match=r"no route to host\). Put mnist\.npz"):
        load_images("mnist")
    assert list(digits.iterdir()) == []


@pytest.mark.slow
def test_download(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What OpenML sends goes into one whole file; too few images do not."""
    (digits / "mnist.npz").unlink()

    def sent(count: int):
        return lambda *_, **__: (np.zeros((count, 784)), np.array(["3"] * count))

    monkeypatch.setattr("dnn2gp.paper.datasets.images.fetch_openml", sent(100))
    with pytest.raises(FileFormatError, match="mnist: expected"):
        load_images("mnist")
    assert list(digits.iterdir()) == []
    monkeypatch.setattr("dnn2gp.paper.datasets.images.fetch_openml", sent(70_000))
    with pytest.raises(FileFormatError, match="checksum"):
        load_images("mnist")
    assert list(digits.iterdir()) == []
    arrays = [np.zeros((count, *shape), np.uint8) + value for count in (60_000, 10_000) for shape, value in _EMPTY]
    known = replace(images.SOURCES["mnist"], checksum=images.checksum(arrays))
    monkeypatch.setitem(images.SOURCES, "mnist", known)
    assert len(load_images("mnist").test_labels) == 10_000
    assert [path.name for path in digits.iterdir()] == ["mnist.npz"]


def test_colours_come_before_rows_and_are_normalised(empty: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    labels = (np.arange(20) % 10).astype(np.uint8)
    np.savez(empty / "cifar10.npz", x_train=pixels, y_train=labels, x_test=pixels[:5], y_test=labels[:5])
    found = load_images("cifar10")
    assert found.train_images.shape == (20, 3, 32, 32)
    np.testing.assert_allclose(found.train_images[7, 2, 5, 6].item(), pixels[7, 5, 6, 2] / 255, rtol=1e-6)
    assert found.classes[9] == "truck"
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    scaled = found.normalised(mean, std).test_images[1, 1, 2, 3].item()
    np.testing.assert_allclose(scaled, (pixels[1, 2, 3, 1] / 255 - 0.4822) / 0.1994, rtol=1e-5)


def test_some_classes_alone(digits: Path) -> None:
    all_of_them = load_images("mnist")
    few = all_of_them.of_classes([7, 1])
    assert few.classes == ("7", "1")
    assert set(few.train_labels.tolist()) == {0, 1}
    assert len(few.test_labels) == int(((all_of_them.test_labels == 7) | (all_of_them.test_labels == 1)).sum())
    sevens = all_of_them.train_images[all_of_them.train_labels == 7]
    assert torch.equal(few.train_images[few.train_labels == 0], sevens)


# Regressions --------------------------------------------------------------------------------------------------------


def test_fresh_draws_are_those_of_the_paper_in_kind():
    draws = generate_draws(3, num_train=4000, num_test=10)
    x = draws.train_inputs[0, :, 0]
    assert torch.equal(draws.train_inputs[..., 1], torch.ones(3, 4000, dtype=torch.float64))
    middle = x.abs() < 1
    assert middle.double().mean().item() == pytest.approx(0.1, abs=0.02)
    assert not ((x.abs() > 1) & (x.abs() < 1.5)).any()
    gap = draws.train_targets[0, :, 0] - torch.sin(x)
    assert gap[middle].std().item() == pytest.approx(1.0, rel=0.1)
    assert gap[~middle].std().item() == pytest.approx(0.1, rel=0.1)
    assert draws.take(2).count == 2


def test_data_that_are_not_there_or_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("DNN2GP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "new draws" in synthetic_draws(2).source
    (tmp_path / "synthetic_regression.npz").write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="is not an npz file with the arrays"):
        synthetic_draws()
    np.savez(tmp_path / "wine_splits_standardised.npz", x_train=np.zeros((2, 5, 3)))
    with pytest.raises(FileFormatError, match="y_train"):
        wine_splits()
    one = {"x_train": np.zeros((1, 5, 11)), "y_train": np.zeros((1, 5)), "x_test": np.zeros((1, 2, 11))}
    np.savez(tmp_path / "wine_splits_standardised.npz", **one, y_test=np.zeros((1, 2)), y_scale=np.ones(1))
    assert wine_splits(1).count == 1
    with pytest.raises(InputError, match="count"):
        wine_splits(3)
    (tmp_path / "wine_splits_standardised.npz").unlink()
    (tmp_path / "winequality-red.csv").write_text("a;b\n1;2\n")
    with pytest.raises(FileFormatError, match="1599 rows"):
        wine_splits(1)


def test_the_table_is_split_when_the_splits_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("DNN2GP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = np.random.default_rng(0).normal(size=(1599, 12))
    np.savetxt(tmp_path / "winequality-red.csv", rows, delimiter=";", header="a", comments="")
    draws = wine_splits(2)
    assert draws.train_inputs.shape == (2, 1439, 11)
    assert draws.test_targets.shape == (2, 160, 1)
    torch.testing.assert_close(draws.train_inputs.std(1, correction=0), torch.ones(2, 11, dtype=torch.float64))
    torch.testing.assert_close(draws.train_targets.mean(1), torch.zeros(2, 1, dtype=torch.float64))


@pytest.mark.skipif(find("snelson/train_inputs") is None, reason="Snelson's data are not in DNN2GP_DATA")
def test_snelson_is_what_its_checksums_say() -> None:
    for name, expected in snelson_module._CHECKSUMS.items():
        path = find(f"snelson/{name}")
        assert path is not None
        download.check(snelson_module._canonical(path.read_bytes()), expected, "", "", "")
    found = load_snelson()
    assert found.inputs.shape == found.targets.shape == (200, 1)
    left = found.without(1.5, 3.0)
    gone = ((found.inputs >= 1.5) & (found.inputs <= 3.0)).sum().item()
    assert len(left.inputs) == 200 - gone
    assert not ((left.inputs >= 1.5) & (left.inputs <= 3.0)).any()


@pytest.mark.skipif(find("winequality-red.csv") is None, reason="the table of wines is not in DNN2GP_DATA")
def test_the_table_of_wines_is_what_its_checksum_says() -> None:
    from dnn2gp.paper.datasets import wine

    path = find("winequality-red.csv")
    assert path is not None
    download.check(path.read_bytes(), wine._CHECKSUM, "", "", "")


def served(folder: Path, inputs: str, outputs: str) -> str:
    """An archive like Snelson's, at an address that urlopen reads."""
    path = folder / "served.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("SPGP_dist/train_inputs", inputs)
        archive.writestr("SPGP_dist/train_outputs", outputs)
        archive.writestr("SPGP_dist/test_inputs", "1.0")
    return path.as_uri()


def test_snelson_is_downloaded_whole_or_not_at_all(
    empty: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("source")
    numbers = "\n".join(f"{value:.7e}" for value in np.random.default_rng(0).normal(size=200))
    monkeypatch.setattr(snelson_module, "_URL", served(elsewhere, numbers, numbers))
    with pytest.raises(InputError, match=r"SHA-256 .*Put snelson/train_inputs and"):
        load_snelson()
    assert list(empty.iterdir()) == []
    known = download.sha256(snelson_module._canonical(numbers.encode())).hexdigest()
    monkeypatch.setattr(snelson_module, "_CHECKSUMS", {"train_inputs": known, "train_outputs": known})
    found = load_snelson()
    np.testing.assert_allclose(found.inputs[:, 0].numpy(), np.array(numbers.split(), dtype=float))
    assert sorted(path.name for path in (empty / "snelson").iterdir()) == ["train_inputs", "train_outputs"]
    (empty / "snelson" / "train_inputs").write_text("1.0\n2.0\n")
    with pytest.raises(FileFormatError, match="expected 200 numbers"):
        load_snelson()
    (empty / "snelson" / "train_inputs").write_text("one\n")
    with pytest.raises(FileFormatError, match="one number per line"):
        load_snelson()


def test_a_source_that_is_not_there_or_no_archive(
    empty: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("source")
    monkeypatch.setattr(snelson_module, "_URL", (elsewhere / "nothing.zip").as_uri())
    with pytest.raises(InputError, match=r"download from .*nothing\.zip failed"):
        load_snelson()
    (elsewhere / "text.zip").write_text("no archive")
    monkeypatch.setattr(snelson_module, "_URL", (elsewhere / "text.zip").as_uri())
    with pytest.raises(InputError, match="does not hold them"):
        load_snelson()
    assert list(empty.iterdir()) == []


# The plane ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [half_moons, bent_clouds])
def test_points_of_two_classes(draw) -> None:
    found = draw(101, seed=3)
    assert found.inputs.shape == (101, 2)
    assert found.inputs.dtype == torch.float64
    assert abs(int(found.labels.sum()) - 50) <= 1
    assert torch.equal(found.inputs, draw(101, seed=3).inputs)
    assert not torch.equal(found.inputs, draw(101, seed=4).inputs)
    with pytest.raises(InputError, match="at least 2 points"):
        draw(1)
