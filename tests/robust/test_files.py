"""Files: written whole or not at all, read exactly or refused in words, and never unpickled."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from pathlib import Path

import forked
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import dnn2gp.weights.structures.dense
from dnn2gp import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    CustomLikelihood,
    Diagonal,
    FunctionSpace,
    GaussianLikelihood,
    GaussianProcess,
    WeightSpace,
    convert,
    load,
    save,
)
from dnn2gp.inference import function_space
from dnn2gp.support.errors import FileFormatError, InputError, NetworkError
from dnn2gp.weights import DensePrecision, DiagonalPrecision, Expansion

from robust.saved_files import CLASSIFIERS, classifier, rewrite
from robust.support import DELTA, NOISE, mlp, regression, untouched

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


def fresh(**settings) -> nn.Sequential:
    """The architecture of `mlp`, with other weights and no hooks."""
    torch.manual_seed(99)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(torch.float64, **settings)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "gp.safetensors"


@pytest.fixture
def saved(path) -> Path:
    save(convert(mlp(), regression(), NOISE, DELTA), path)
    return path


def unchanged(gp, loaded, x) -> None:
    """Every answer is the same to the last bit."""
    for name in ("mean", "variance", "epistemic", "aleatoric", "latent_covariance"):
        assert torch.equal(getattr(gp.predict(x), name), getattr(loaded.predict(x), name)), name
    assert torch.equal(gp.covariance(x), loaded.covariance(x))
    assert torch.equal(gp.mean(x), loaded.mean(x))
    seeds = (torch.Generator().manual_seed(0), torch.Generator().manual_seed(0))
    assert torch.equal(gp.sample_functions(3, seeds[0])(x), loaded.sample_functions(3, seeds[1])(x))
    assert gp.evidence() == loaded.evidence()
    assert type(gp.inference) is type(loaded.inference)
    assert gp.inference.method == loaded.inference.method


SETTINGS = {
    "weight space": {"inference": WeightSpace()},
    "function space": {"inference": FunctionSpace()},
    "diagonal": {"structure": Diagonal()},
    "gradient features": {"expansion": Expansion.empirical_fisher, "inference": WeightSpace()},
    "gradient features, function space": {"expansion": Expansion.empirical_fisher, "inference": FunctionSpace()},
}


# Round trips ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", SETTINGS)
def test_exact(path, settings: str, dtype) -> None:
    module, (x, y) = mlp(dtype=dtype), regression(dtype=dtype)
    gp = convert(module, (x, y), NOISE, DELTA, **SETTINGS[settings])
    with untouched(module):
        save(gp, path)
    other = fresh().to(dtype)
    with untouched(other):
        loaded = load(path, other)
    unchanged(gp, loaded, x)
    unchanged(gp, load(str(path), lambda: fresh().to(dtype)), x)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_means_and_calibrations(path, kind: str) -> None:
    gp, x = classifier(kind), regression()[0]
    save(gp, path)
    loaded = load(path, fresh())
    unchanged(gp, loaded, x)
    assert (loaded.centre, loaded.calibration) == (gp.centre, gp.calibration)
    assert torch.equal(loaded.predict(x).probabilities, gp.predict(x).probabilities)
    assert torch.equal(loaded.leave_one_out().log_prob, gp.leave_one_out().log_prob)
    assert loaded.calibrated().calibration == gp.calibrated().calibration


@pytest.mark.parametrize("kind", ["at the mode", "calibrated"])
def test_a_loaded_gp_can_be_conditioned(path, kind: str) -> None:
    gp, x = classifier(kind), regression()[0]
    save(gp, path)
    new = (x[:3] + 0.1, torch.tensor([1, 0, 1]))
    found, expected = (own.condition(new).predict(x) for own in (load(path, fresh()), gp))
    torch.testing.assert_close(found.latent_mean, expected.latent_mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.latent_covariance, expected.latent_covariance, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (CategoricalLikelihood(), torch.arange(10) % 2),
        (BernoulliLikelihood(), torch.arange(20).reshape(10, 2).double() % 2),
        (GaussianLikelihood(torch.tensor([0.5, 0.25])), regression()[1]),
        (GaussianLikelihood(torch.rand(10, 2) + 0.1), regression()[1]),
    ],
)
def test_likelihoods(path, likelihood, targets: Tensor) -> None:
    x, _ = regression()
    gp = convert(mlp(), (x, targets), likelihood, DELTA)
    save(gp, path)
    again = load(path, fresh())
    if likelihood.per_example:
        assert torch.equal(again.likelihood.sigma, likelihood.sigma)
        gp, again = (GaussianProcess(g.features, g.inference, GaussianLikelihood(0.5)) for g in (gp, again))
    unchanged(gp, again, x)


def test_after_conditioning(path) -> None:
    x, y = regression()
    for inference in (WeightSpace(), FunctionSpace()):
        gp = convert(mlp(), (x[:6], y[:6]), NOISE, DELTA, inference=inference).condition((x[6:], y[6:]))
        save(gp, path)
        loaded = load(path, fresh())  # its data are in chunks of their own, so sums may differ in the last bit
        torch.testing.assert_close(loaded.predict(x).variance, gp.predict(x).variance, rtol=1e-13, atol=0)
        torch.testing.assert_close(loaded.predict(x).mean, gp.predict(x).mean, rtol=1e-12, atol=1e-13)
        assert loaded.evidence().value == pytest.approx(gp.evidence().value, rel=1e-13)


def test_prior_of_each_layer(path) -> None:
    x, y = regression()
    gp = convert(mlp(), (x, y), NOISE, {"0": 1.0, "2": 3.0})
    save(gp, path)
    unchanged(gp, load(path, fresh()), x)


@pytest.mark.parametrize("settings", SETTINGS)
def test_loading_computes_nothing_again(path, settings: str, monkeypatch) -> None:
    seen: list[int] = []
    x, y = regression(300)
    save(convert(mlp(), (x, y), NOISE, DELTA, **SETTINGS[settings]), path)
    other = fresh()
    other.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))

    def forbidden(*_: object) -> None:
        raise AssertionError("a factorisation was computed again")

    monkeypatch.setattr(function_space, "cholesky", forbidden)
    monkeypatch.setattr(dnn2gp.weights.structures.dense, "cholesky", forbidden)
    load(path, other)
    assert max(seen) <= 16, "only the probe of a few examples"


def test_frozen_weights(path) -> None:
    module, (x, y) = mlp(), regression()
    module[0].requires_grad_(False)
    gp = convert(module, (x, y), NOISE, DELTA)
    save(gp, path)
    other = fresh()
    assert all(p.requires_grad for p in other.parameters())
    with untouched(other):
        loaded = load(path, other)
    assert loaded.network.layout.names == ("2.weight", "2.bias")
    unchanged(gp, loaded, x)


def test_another_dtype_in_the_fresh_module(path) -> None:
    x, y = regression()
    gp = convert(mlp(), (x, y), NOISE, DELTA)
    save(gp, path)
    other = fresh().float()
    with untouched(other):
        loaded = load(path, other)
    unchanged(gp, loaded, x)
    assert other[0].weight.dtype == torch.float32


def test_train_mode_of_a_fresh_module_is_no_warning(path, recwarn) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).double()

    x, y = regression()
    module = build()
    module(x)
    gp = convert(module.eval(), (x, y), NOISE, DELTA)
    save(gp, path)
    unchanged(gp, load(path, build), x)
    assert not [w for w in recwarn if "train mode" in str(w.message)]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2).double(), nn.Embedding(4, 2).double()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) * self.right(b)


@pytest.mark.slow
@pytest.mark.parametrize("expand", [Expansion.gauss_newton, Expansion.empirical_fisher])
@pytest.mark.parametrize("pack", [tuple, list, lambda pair: dict(zip("ab", pair, strict=True))])
def test_containers_of_inputs(path, pack, expand) -> None:
    x, y = regression()
    inputs = pack((x, torch.arange(10) % 4))
    gp = convert(Two(), (inputs, y), NOISE, DELTA, expansion=expand)
    save(gp, path)
    unchanged(gp, load(path, Two), inputs)


def test_shared_weights(path) -> None:
    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        module[2].weight = module[0].weight
        return module

    x, y = regression()
    gp = convert(build(), (x, y), NOISE, DELTA)
    save(gp, path)
    unchanged(gp, load(path, build), x)
    with pytest.raises(NetworkError, match=r"not in the file: \['2.weight'\]"):
        load(path, nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double())


def test_custom_likelihood_is_handed_in_again(path) -> None:
    x, y = regression()
    custom = CustomLikelihood(lambda f, y: 2 * (y - f).square().sum())
    gp = convert(mlp(), (x, y), custom, DELTA)
    save(gp, path)
    with pytest.raises(InputError, match=r"likelihood: .*custom"):
        load(path, fresh())
    unchanged(gp, load(path, fresh(), likelihood=custom), x)


# The wrong network ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (
            nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
            r"with a different shape: \['0.weight', '0.bias', '2.weight'\]",
        ),
        (
            nn.Sequential(nn.Linear(3, 2)),
            r"only in the file: \['2.bias', '2.weight'\]; with a different shape: \['0.weight', '0.bias'\]",
        ),
        (
            nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
            r"not in the file: \['1.bias', '1.num_batches_tracked'",
        ),
    ],
)
def test_another_architecture(saved, module: nn.Module, match: str) -> None:
    with (
        untouched(module.double()),
        pytest.raises(NetworkError, match=match),
    ):
        load(saved, module)


# Files that are none of ours ------------------------------------------------------------------------------------------


class Bomb:
    """Unpickled, it makes the directory `marker`."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("writer", [lambda o, p: p.write_bytes(pickle.dumps(o)), torch.save])
def test_pickles_are_never_opened(tmp_path, path, writer) -> None:
    marker = tmp_path / "marker"
    writer(Bomb(marker), path)
    with pytest.raises(FileFormatError, match=r"safetensors.*pickle"):
        load(path, fresh())
    assert not marker.exists()
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists(), "the bomb was none"


@pytest.mark.parametrize("kept", [0, 4, 100, 1000, -1])
def test_truncated(saved, kept: int) -> None:
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(FileFormatError, match=r"safetensors.*truncated"):
        load(saved, fresh())


def test_random_bytes(path) -> None:
    path.write_bytes(
        torch.randint(0, 256, (5000,), generator=torch.Generator().manual_seed(0)).to(torch.uint8).numpy().tobytes()
    )
    with pytest.raises(FileFormatError, match="safetensors"):
        load(path, fresh())


def test_missing_file(path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gp.safetensors"):
        load(path, fresh())


def test_folder(tmp_path) -> None:
    with pytest.raises(FileFormatError, match="folder"):
        load(tmp_path, fresh())


def test_another_safetensors_file(path) -> None:
    save_file({"weight": torch.ones(3)}, path)
    with pytest.raises(FileFormatError, match="'dnn2gp'"):
        load(path, fresh())


@pytest.mark.parametrize("found", [5, 0, "1", None, True])
def test_another_format_version(saved, found) -> None:
    rewrite(saved, lambda header: {**header, "format": found, "dnn2gp": "9.9"})
    with pytest.raises(FileFormatError, match=rf"format .*{found}.*9.9"):
        load(saved, fresh())


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"text"'])
def test_header_that_is_none(saved, text: str) -> None:
    rewrite(saved, lambda _: text)
    with pytest.raises(FileFormatError, match=r"'dnn2gp'|format None"):
        load(saved, fresh())


KEYS = ["likelihood", "trainable", "inputs", "features", "prior", "inference", "mean", "calibration"]


@pytest.mark.parametrize("key", [*KEYS, "format"])
def test_header_without_a_key(saved, key: str) -> None:
    rewrite(saved, lambda header: {name: value for name, value in header.items() if name != key})
    with pytest.raises(FileFormatError, match=rf"header has {key} = None|format None"):
        load(saved, fresh())


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["nonsense", 3, ["nonsense"], [], {"a": 1}])
def test_header_with_nonsense(saved, key: str, value) -> None:
    rewrite(saved, lambda header: {**header, key: value})
    if key == "likelihood" and value == "nonsense":
        error, match = FileFormatError, "likelihood = 'nonsense'.*import the module"
    elif key == "inputs" and value == ["nonsense"]:
        error, match = InputError, "inputs: "
    elif key == "trainable" and value == ["nonsense"]:
        error, match = FileFormatError, "'network/nonsense'"
    else:
        error, match = FileFormatError, f"header has {key} = "
    with pytest.raises(error, match=match):
        load(saved, fresh())


@pytest.mark.parametrize("structure", ["nonsense", {"name": "diagonal", "width": 3}, None])
def test_header_with_a_structure_that_is_unknown(path, structure) -> None:
    save(convert(mlp(), regression(), NOISE, DELTA, structure=Diagonal()), path)
    rewrite(path, lambda header: {**header, "inference": {**header["inference"], "structure": structure}})
    with pytest.raises(FileFormatError, match="header has inference = "):
        load(path, fresh())


@pytest.mark.parametrize("settings", ["weight space", "function space", "diagonal"])
def test_files_of_format_1_are_read(path, settings: str) -> None:
    """They name the structure beside the inference."""
    x, y = regression()
    gp = convert(mlp(), (x, y), NOISE, DELTA, **SETTINGS[settings])
    save(gp, path)
    old = {"format": 1, "inference": gp.inference.name, "structure": "diagonal" if settings == "diagonal" else "dense"}
    rewrite(path, lambda header: {**header, **old}, seal=False)
    unchanged(gp, load(path, fresh()), x)


KINDS = ["weight space", "function space", "diagonal", "gradient features", *CLASSIFIERS]


@pytest.mark.parametrize("kind", KINDS)
def test_file_without_a_tensor(path, kind: str) -> None:
    gp = classifier(kind) if kind in CLASSIFIERS else convert(mlp(), regression(), NOISE, DELTA, **SETTINGS[kind])
    save(gp, path)
    whole = path.read_bytes()
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
    assert len(names) >= 11
    for name in names:
        path.write_bytes(whole)
        rewrite(path, change_tensors=lambda tensors, name=name: {n: t for n, t in tensors.items() if n != name})
        if name == "expansion/targets":  # which only leave-one-out and the mode need
            loaded = load(path, fresh())
            assert torch.equal(loaded.predict(regression()[0]).variance, gp.predict(regression()[0]).variance)
            with pytest.raises(InputError, match="targets"):
                loaded.leave_one_out()
            continue
        with pytest.raises((FileFormatError, NetworkError), match=name.rpartition("/")[2]) as caught:
            load(path, fresh())
        assert not isinstance(caught.value, KeyError)


# A full disk ----------------------------------------------------------------------------------------------------------


def full_disk(path: Path, limit: int) -> str:
    return forked.run([Path(__file__).with_name("full_disk.py"), path, limit]).stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no limit on the size of files")
@pytest.mark.parametrize("limit", [0, 4096])
def test_full_disk(saved, limit: int) -> None:
    before = saved.read_bytes()
    said = full_disk(saved, limit)
    assert said.startswith(f"OSError Could not write {saved}: ")
    assert "File too large" in said
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
    load(saved, fresh())


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit on the size of files")
def test_full_disk_without_an_older_file(path) -> None:
    assert full_disk(path, 4096).startswith("OSError Could not write")
    assert list(path.parent.iterdir()) == []


def test_folder_that_does_not_exist(tmp_path) -> None:
    module = mlp()
    gp = convert(module, regression(), NOISE, DELTA)
    with untouched(module), pytest.raises(InputError, match=r"folder .* does not exist. Create it first"):
        save(gp, tmp_path / "nowhere" / "gp.safetensors")
    with pytest.raises(InputError, match=r"it is a folder. Give the name of a file"):
        save(gp, tmp_path)


def test_the_loaded_gp_owns_its_weights(saved) -> None:
    x, _ = regression()
    other = fresh()
    loaded = load(saved, other)
    expected = load(saved, fresh()).predict(x)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    saved.unlink()
    assert torch.equal(loaded.predict(x).variance, expected.variance)
    assert isinstance(copy.copy(loaded).model.prior.precision, DiagonalPrecision)
    assert isinstance(loaded.posterior.precision, DensePrecision)


def test_a_likelihood_of_another_kind_is_refused(path) -> None:
    x, y = regression()
    save(convert(mlp(), (x, y), NOISE, DELTA), path)
    with pytest.raises(InputError, match=r"likelihood: .*'gaussian'.*'bernoulli'"):
        load(path, fresh(), likelihood=BernoulliLikelihood())


def test_a_likelihood_with_another_noise_is_refused(path) -> None:
    x, y = regression()
    gp = convert(mlp(), (x, y), NOISE, DELTA)
    save(gp, path)
    unchanged(gp, load(path, fresh(), likelihood=NOISE), x)
    for other in (GaussianLikelihood(2 * NOISE.sigma), GaussianLikelihood(NOISE.sigma.expand(2)), GaussianLikelihood()):
        with pytest.raises(InputError, match="likelihood: expected the sigma with which the GP was saved"):
            load(path, fresh(), likelihood=other)


def test_a_network_that_computes_something_else_is_refused(path) -> None:
    x, y = regression()
    save(convert(mlp(), (x, y), NOISE, DELTA), path)
    other = mlp()
    other[1] = torch.nn.ReLU()
    with pytest.raises(NetworkError, match="network: "):
        load(path, other)


def test_only_a_gp_is_saved(path) -> None:
    with pytest.raises(InputError, match=r"save: .*Sequential"):
        save(mlp(), path)
