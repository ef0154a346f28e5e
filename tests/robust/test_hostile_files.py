"""Files from strangers: each defect is an error that names the entry, found before memory is allocated for it."""

from __future__ import annotations

import json
import os
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from torch import Tensor, nn

from dnn2gp import BlockDiagonal, Diagonal, FunctionSpace, Kronecker, WeightSpace, convert, load, save
from dnn2gp.optim import load_checkpoint, save_checkpoint
from dnn2gp.support.errors import FileFormatError, InputError, MemoryBudgetError, NetworkError
from dnn2gp.support.files import as_path

from robust.saved_files import classifier, contents, raw_header, rewrite, with_raw_header
from robust.support import DELTA, NOISE, mlp, regression

pytestmark = [
    pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning"),
    pytest.mark.skipif(os.name != "posix", reason="modes, FIFOs and limits of memory are those of POSIX"),
]
SETTINGS = {
    "dense": {"inference": WeightSpace()},
    "function space": {"inference": FunctionSpace()},
    "diagonal": {"structure": Diagonal()},
    "block diagonal": {"structure": BlockDiagonal()},
    "kronecker": {"structure": Kronecker()},
}
Saved = Callable[..., Path]
Tensors = dict[str, Tensor]


def fresh() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A saved GP of each kind."""
    path = tmp_path_factory.mktemp("written") / "gp.safetensors"
    found = {}
    for name, settings in SETTINGS.items():
        save(convert(mlp(), regression(), NOISE, DELTA, **settings), path)  # type: ignore[arg-type]
        found[name] = path.read_bytes()
    for name in ("at the mode", "calibrated"):
        save(classifier(name), path)
        found[name] = path.read_bytes()
    return found


@pytest.fixture
def saved(written: dict[str, bytes], tmp_path: Path) -> Saved:
    def write(kind: str = "dense") -> Path:
        path = tmp_path / "gp.safetensors"
        path.write_bytes(written[kind])
        return path

    return write


# Special files and modes ----------------------------------------------------------------------------------------------


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("read", [lambda path: load(path, fresh()), load_checkpoint])
def test_a_fifo_is_refused_without_waiting_for_a_writer(fifo: Path, read: Callable[[Path], object]) -> None:
    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            read(fifo)
        except FileFormatError as error:
            raised.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(30)
    if thread.is_alive():  # let it end
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    assert raised
    assert "FIFO" in str(raised[0])


def test_special_files_are_not_replaced(fifo: Path) -> None:
    gp = convert(mlp(), regression(), NOISE, DELTA)
    for write in (lambda path: save(gp, path), lambda path: save_checkpoint(path, {"a": 1})):
        with pytest.raises(InputError, match="FIFO"):
            write(fifo)
    with pytest.raises(InputError, match="FIFO"):
        gp.kernel.full(regression()[0], out=fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert [path.name for path in fifo.parent.iterdir()] == ["fifo"]


@pytest.mark.parametrize("path", [3, None, b"gp.safetensors", "a\0b"])
def test_names_that_are_none(path: Any) -> None:
    with pytest.raises(InputError, match="path"):
        as_path(path)


def test_a_name_with_a_null_character() -> None:
    gp, path = convert(mlp(), regression(), NOISE, DELTA), "a\0b"
    for call in (
        lambda: save(gp, path),
        lambda: load(path, fresh()),
        lambda: save_checkpoint(path, {}),
        lambda: load_checkpoint(path),
        lambda: gp.kernel.full(regression()[0], out=path),
    ):
        with pytest.raises(InputError, match="path"):
            call()


def test_what_builds_no_network(saved: Saved) -> None:
    for network in (nn.Linear, lambda width: nn.Linear(3, width)):
        with pytest.raises(InputError, match="network"):
            load(saved(), network)  # type: ignore[arg-type]
    load(saved(), fresh)


def test_modes_are_those_of_other_files(saved: Saved, tmp_path: Path) -> None:
    gp = load(saved(), fresh())
    new = tmp_path / "new.safetensors"
    for umask in (0o022, 0o077):
        before = os.umask(umask)
        try:
            save(gp, new)
        finally:
            os.umask(before)
        assert stat.S_IMODE(new.stat().st_mode) == 0o666 & ~umask
        new.unlink()
    for mode in (0o600, 0o640, 0o664):
        new.touch()
        new.chmod(mode)
        save(gp, new)
        assert stat.S_IMODE(new.stat().st_mode) == mode
        gp.kernel.full(regression()[0], out=new)
        assert stat.S_IMODE(new.stat().st_mode) == mode


# Sizes ----------------------------------------------------------------------------------------------------------------


def huge_ranges(tensors: Tensors) -> Tensors:
    """The first block claims 400 million weights."""
    return {**tensors, "inference/0.ranges": torch.tensor([[0, 400_000_000]])}


def test_the_ranges_of_a_block_are_not_trusted(saved: Saved) -> None:
    path = saved("block diagonal")
    rewrite(path, change_tensors=huge_ranges)
    assert path.stat().st_size < 10_000
    said = forked.run([Path(__file__).with_name("limited_memory.py"), path]).stdout
    assert said.startswith("FileFormatError")
    assert "inference/0.ranges" in said


def claims(name: str, shape: list[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The header says that one tensor is larger than the file."""

    def change(header: dict[str, Any]) -> dict[str, Any]:
        start = header[name]["data_offsets"][0]
        size = torch.Size(shape).numel() * 8
        return {**header, name: {**header[name], "shape": shape, "data_offsets": [start, start + size]}}

    return change


@pytest.mark.parametrize("shape", [[10**9], [10**6, 10**6], [2**62, 4]])
def test_a_tensor_is_within_the_file(saved: Saved, shape: list[int]) -> None:
    path = saved()
    with_raw_header(path, claims("prior/mean", shape))
    with pytest.raises(FileFormatError):
        load(path, fresh())


def test_a_file_larger_than_the_budget_is_not_read(saved: Saved) -> None:
    with pytest.raises(MemoryBudgetError):
        load(saved(), fresh(), memory_budget=1000)


# Entries --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["block diagonal", "kronecker"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_block_is_found(saved: Saved, kind: str, number: int) -> None:
    path = saved(kind)
    rewrite(path, change_tensors=lambda all: {n: t for n, t in all.items() if not n.startswith(f"inference/{number}.")})
    with pytest.raises(FileFormatError, match=r"inference/.*ranges"):
        load(path, fresh())


@pytest.mark.parametrize("kind", ["block diagonal", "kronecker"])
@pytest.mark.parametrize("shift", [-1, 1])
def test_blocks_cover_every_weight_once(saved: Saved, kind: str, shift: int) -> None:
    path = saved(kind)
    rewrite(path, change_tensors=lambda all: {**all, "inference/1.ranges": all["inference/1.ranges"] + shift})
    with pytest.raises(FileFormatError, match=r"inference/.*ranges"):
        load(path, fresh())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SETTINGS, "at the mode", "calibrated"])
def test_every_tensor_has_its_shape_and_dtype(saved: Saved, kind: str) -> None:
    """One row more, one axis more, another dtype, NaN: for every tensor of every kind of file."""
    whole = saved(kind).read_bytes()
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "longer": lambda tensor: torch.cat([tensor, tensor]) if tensor.ndim else tensor.repeat(2),
        "an axis more": lambda tensor: tensor.unsqueeze(-1),
        "integers": lambda tensor: tensor.to(torch.int16),
        "half": lambda tensor: tensor.to(torch.float16),
        "NaN": lambda tensor: tensor.to(torch.float64) * torch.nan,
    }
    for name in contents(saved(kind))[1]:
        for what, change in changes.items():
            path = saved(kind)
            path.write_bytes(whole)
            rewrite(path, change_tensors=lambda all, name=name, change=change: {**all, name: change(all[name])})
            if name == "likelihood/sigma" and what in ("half", "longer"):  # σ of any dtype, or one per output
                load(path, fresh())
                continue
            error, entry = FileFormatError, r"'\w+/[\w.*]+'"
            if name == "inputs/0" and what in ("integers", "an axis more"):  # which only the network refuses
                error, entry = InputError, "inputs"
            elif name.startswith("network/") and what == "an axis more":
                error, entry = NetworkError, name.removeprefix("network/")
            with pytest.raises(error, match=entry):
                load(path, fresh())


@pytest.mark.parametrize("kind", ["dense", "function space"])
@pytest.mark.parametrize("matrix", [[[0.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]])
def test_a_noise_that_has_no_inverse(saved: Saved, kind: str, matrix: list[list[float]]) -> None:
    def change(tensors: Tensors) -> Tensors:
        root = tensors["expansion/root"].clone()
        root[1] = torch.tensor(matrix)
        return {**tensors, "expansion/root": root}

    path = saved(kind)
    rewrite(path, change_tensors=change)
    with pytest.raises(FileFormatError, match="expansion/root"):
        load(path, fresh())


def test_unknown_entries_are_refused(saved: Saved) -> None:
    path = saved()
    rewrite(path, change_tensors=lambda all: {**all, "inference/more": torch.zeros(1)})
    with pytest.raises(FileFormatError, match="inference/more"):
        load(path, fresh())
    path = saved()
    rewrite(path, lambda header: {**header, "more": 1})
    with pytest.raises(FileFormatError, match="more"):
        load(path, fresh())


def test_a_buffer_is_no_weight(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double().eval()

    path = tmp_path / "gp.safetensors"
    save(convert(build(), regression(), NOISE, DELTA), path)
    exchange = {"1.weight": "1.running_mean"}
    rewrite(path, lambda header: {**header, "trainable": [exchange.get(name, name) for name in header["trainable"]]})
    with pytest.raises(FileFormatError, match="trainable"):
        load(path, build)


# JSON -----------------------------------------------------------------------------------------------------------------


HOSTILE = {
    "deep lists": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "open lists": "[" * 100_000,
    "a long integer": '{"format": ' + "9" * 10_000 + "}",
    "a key twice": '{"a": 1, "a": 2}',
    "bytes that are no text": "\udcff",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_json(saved: Saved, what: str) -> None:
    """As our header, as that of the container, and as the tree of a checkpoint."""
    path, text = saved(), HOSTILE[what].encode("utf-8", "surrogateescape")
    if text.isascii():
        rewrite(path, lambda _: text.decode())
        with pytest.raises(FileFormatError, match="'dnn2gp'"):
            load(path, fresh())
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(FileFormatError, match="safetensors"):
        load(path, fresh())
    path.write_bytes(checkpoint(text))
    with pytest.raises(FileFormatError, match="dnn2gp_checkpoint"):
        load_checkpoint(path)


def checkpoint(text: bytes) -> bytes:
    """A checkpoint of format 1 with this text as its tree."""
    own = {"dnn2gp_checkpoint": {"dtype": "U8", "shape": [len(text)], "data_offsets": [0, len(text)]}}
    header = json.dumps(own).encode()
    return struct.pack("<Q", len(header)) + header + text


@pytest.mark.parametrize(
    "tuning",
    [
        3,
        {},
        {"format": 1, "trials": 3},
        {"repeat": float("inf")},
        {"repeat": 10**400},
        {"values": {"evidence": "x"}},
        {"values": {}},
        {"settings": {"a": []}},
        {"settings": None},
    ],
)
def test_hostile_tuning(saved: Saved, tuning: Any) -> None:
    trial = {"settings": {"delta": 1.0}, "values": {"evidence": -1.0}, "repeat": 0}
    state = {"format": 1, "method": "m", "best": {"delta": 1.0}, "evidence": -1.0, "converged": True, "notes": []}
    path = saved()
    rewrite(path, lambda header: {**header, "tuning": {**state, "trials": [trial]}})
    assert load(path, fresh()).tuning is not None
    own = tuning if tuning in (3, {}) or "trials" in tuning else {**state, "trials": [{**trial, **tuning}]}
    rewrite(path, lambda header: {**header, "tuning": own})
    with pytest.raises(FileFormatError, match="tuning"):
        load(path, fresh())


def hostile_calibrations() -> list[Any]:
    whole = {"scale": 0.3, "temperature": 1.7, "noise": 1.0}
    values = ["1", None, True, [], float("nan"), float("inf"), -1.0, 10**400, -(10**400)]
    changed = [{**whole, name: value} for name in whole for value in values]
    zero = [{**whole, name: 0.0} for name in ("temperature", "noise")]
    missing = [{other: value for other, value in whole.items() if other != name} for name in whole]
    return [*changed, *zero, *missing, {**whole, "more": 1.0}, {**whole, "noise": 2.0}, {}, None, 3, "scale", [1.0]]


@pytest.mark.parametrize("calibration", hostile_calibrations(), ids=lambda own: repr(own)[:60])
def test_hostile_calibration(saved: Saved, calibration: Any) -> None:
    """Wrong types and values, and a factor of the noise for a classifier."""
    path = saved("calibrated")
    rewrite(path, lambda header: {**header, "calibration": calibration})
    with pytest.raises(FileFormatError, match="calibration"):
        load(path, fresh())


def test_a_calibration_belongs_to_its_likelihood(saved: Saved) -> None:
    path = saved("dense")
    calibration = {"scale": 0.5, "temperature": 1.0, "noise": 2.0}
    rewrite(path, lambda header: {**header, "calibration": calibration})
    assert load(path, fresh()).calibration.noise == 2
    rewrite(path, lambda header: {**header, "calibration": {**calibration, "temperature": 2.0}})
    with pytest.raises(FileFormatError, match="calibration"):
        load(path, fresh())


def test_an_unknown_likelihood_names_the_file_and_the_release(saved: Saved) -> None:
    path = saved("dense")
    rewrite(path, lambda header: {**header, "likelihood": "negative binomial"})
    with pytest.raises(FileFormatError, match=r"gp.*likelihood = 'negative binomial'.*import the module.*dnn2gp"):
        load(path, fresh())


MEANS = [
    "Gauss-Newton step",
    "linearised mode",
    {"name": "network output", "sites_at_mode": False},
    {"name": "network output", "sites_at_mode": True},
    "network output",
]


@pytest.mark.parametrize("kind", ["dense", "diagonal", "at the mode", "calibrated"])
def test_the_mean_is_that_of_the_tensors(saved: Saved, kind: str) -> None:
    right = contents(saved(kind))[0]["mean"]
    others = [own for own in MEANS if own != right and (kind, own) != ("diagonal", "network output")]
    for mean in [*others, "mean", 3, None, [], {"name": "network output", "sites_at_mode": 1}, {"name": right, "a": 1}]:
        path = saved(kind)
        rewrite(path, lambda header, mean=mean: {**header, "mean": mean})
        with pytest.raises(FileFormatError, match="mean"):
            load(path, fresh())


@pytest.mark.parametrize("targets", [[2] + [0] * 9, [-1] + [0] * 9, [2**62] + [0] * 9])
def test_labels_of_no_class(saved: Saved, targets: list[int]) -> None:
    path = saved("at the mode")
    rewrite(path, change_tensors=lambda all: {**all, "expansion/targets": torch.tensor(targets)})
    with pytest.raises(FileFormatError, match="expansion/targets"):
        load(path, fresh())


# The container --------------------------------------------------------------------------------------------------------


def swapped(header: dict[str, Any]) -> dict[str, Any]:
    """Two tensors at each other's place."""
    first, second = "network/0.bias", "check/outputs"
    places = header[first]["data_offsets"], header[second]["data_offsets"]
    return {
        **header,
        first: {**header[first], "data_offsets": places[1]},
        second: {**header[second], "data_offsets": places[0]},
    }


ENTRIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "an unknown dtype": lambda entry: {**entry, "dtype": "F128"},
    "a dtype that is no text": lambda entry: {**entry, "dtype": ["F64"]},
    "a shape with a negative size": lambda entry: {**entry, "shape": [-1, -len(entry["shape"])]},
    "a shape of fractions": lambda entry: {**entry, "shape": [1.5]},
    "a shape of booleans": lambda entry: {**entry, "shape": [True]},
    "a place that overlaps": lambda entry: {**entry, "data_offsets": [0, entry["data_offsets"][1]]},
    "a place before the file": lambda entry: {**entry, "data_offsets": [-8, 8]},
    "a place that ends first": lambda entry: {**entry, "data_offsets": entry["data_offsets"][::-1]},
    "three places": lambda entry: {**entry, "data_offsets": [*entry["data_offsets"], 0]},
    "no place": lambda entry: {"dtype": entry["dtype"], "shape": entry["shape"]},
    "nothing": lambda entry: {},
}


@pytest.mark.parametrize("what", ENTRIES)
def test_entries_of_the_container(saved: Saved, what: str) -> None:
    path = saved()
    with_raw_header(path, lambda header: {**header, "prior/mean": ENTRIES[what](header["prior/mean"])})
    with pytest.raises(FileFormatError, match="prior/mean"):
        load(path, fresh())


def test_tensors_at_each_others_place(saved: Saved) -> None:
    path = saved()
    with_raw_header(path, swapped)
    with pytest.raises(FileFormatError):
        load(path, fresh())


def test_a_key_that_occurs_twice(saved: Saved) -> None:
    path = saved()
    header, body = raw_header(path)
    text = json.dumps(header)
    twice = (text[:-1] + ', "prior/mean": ' + json.dumps(header["prior/mean"]) + "}").encode()
    path.write_bytes(struct.pack("<Q", len(twice)) + twice + body)
    with pytest.raises(FileFormatError, match="prior/mean"):
        load(path, fresh())


# Checksums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_flipped_bit_is_found_and_its_tensor_named(saved: Saved, kind: str) -> None:
    whole = saved(kind).read_bytes()
    header, body = raw_header(saved(kind))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        content = bytearray(whole)
        content[len(whole) - len(body) + entry["data_offsets"][0]] ^= 1
        path = saved(kind)
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=name):
            load(path, fresh())


def test_every_bit_of_the_header_is_covered(saved: Saved) -> None:
    whole = saved().read_bytes()
    _, body = raw_header(saved())
    path = saved()
    for position in range(0, len(whole) - len(body), 7):
        content = bytearray(whole)
        content[position] ^= 1 << position % 8
        path.write_bytes(content)
        with pytest.raises(FileFormatError):
            load(path, fresh())


def test_a_flipped_bit_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save_checkpoint(path, {"network": {"weight": torch.arange(5.0)}, "epoch": 3})
    whole = path.read_bytes()
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= 1 << position % 8
        path.write_bytes(content)
        with pytest.raises(FileFormatError):
            load_checkpoint(path)


@pytest.mark.parametrize("version", [1, 2])
def test_files_without_checksums_are_read(saved: Saved, version: int) -> None:
    x, _ = regression()
    expected = load(saved(), fresh()).predict(x).epistemic
    path = saved()
    old = {"format": 1, "inference": "weight space", "structure": "dense"} if version == 1 else {"format": 2}
    rewrite(path, lambda header: {**header, **old}, seal=False)
    assert torch.equal(load(path, fresh()).predict(x).epistemic, expected)


def test_checkpoints_without_checksums_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save_checkpoint(path, {"epoch": 3, "weight": torch.ones(2)})
    header, body = raw_header(path)
    del header["__metadata__"]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    assert load_checkpoint(path)["epoch"] == 3


# Trees of checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tree",
    [
        [],
        {"a": {"__tensor__": "9"}},
        {"a": {"__tensor__": []}},
        {"a": {"__tuple__": 3}},
        {"a": {"__pairs__": [[1]]}},
        {"a": {"__pairs__": [[[], 1]]}},
        {"a": {"__pairs__": 5}},
        {"a": {"__other__": 5}},
    ],
)
def test_trees_that_are_none(tmp_path: Path, tree: Any) -> None:
    path = tmp_path / "run.safetensors"
    path.write_bytes(checkpoint(json.dumps(tree).encode()))
    with pytest.raises(FileFormatError, match="checkpoint"):
        load_checkpoint(path)


def test_what_cannot_be_read_again_is_not_written(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    for tree in ({"deep": deep}, {"long": 10**2000}, {("a", 1): 2}, [1]):
        with pytest.raises(InputError, match="checkpoint"):
            save_checkpoint(tmp_path / "run.safetensors", tree)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
