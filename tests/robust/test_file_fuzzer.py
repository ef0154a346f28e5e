"""A fuzzer of files: random damage to saved GPs of all kinds and to checkpoints.

Every damaged file is refused with an error of this package, or gives the prediction that it gave before; nothing else
is raised, and no memory beyond the budget is used. 200 files in the test suite, and as many as DNN2GP_FUZZ_FILES says:

    DNN2GP_FUZZ_FILES=5000 python -m pytest -s tests/robust/test_file_fuzzer.py

Damage is of two kinds. An accident changes the bytes of a file. Malice changes its entries or its header and computes
the checksums again. Most of it cannot be another valid GP; where it can (`other_numbers`), answers may change, since
nobody can tell it from a GP with these numbers.
"""

from __future__ import annotations

import copy
import json
import os
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from optimizing import normalised_1d
from torch import Tensor, nn

from dnn2gp import (
    VOGN,
    BlockDiagonal,
    CategoricalLikelihood,
    Diagonal,
    FunctionSpace,
    GaussianProcess,
    Kronecker,
    WeightSpace,
    convert,
    load,
    save,
)
from dnn2gp.optim import load_checkpoint, save_checkpoint
from dnn2gp.support.errors import EXPECTED
from dnn2gp.weights import Expansion

from robust.saved_files import CLASSIFIERS, classifier, contents, raw_header, rewrite, with_raw_header
from robust.support import DELTA, NOISE, mlp, regression

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
COUNT = int(os.environ.get("DNN2GP_FUZZ_FILES", "200"))
BUDGET = 100_000_000
TYPED = tuple(error for error in EXPECTED if error is not OSError)


@dataclass(frozen=True)
class Case:
    """A file, and a function that reads it and returns what must not change."""

    content: bytes
    answer: Callable[[Path], list[Tensor]]
    is_gp: bool


def fresh() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def tuned() -> GaussianProcess:
    x, y = regression(30)
    return convert(mlp(), (x, y), NOISE, prior_precision="evidence")


def conditioned(**settings: Any) -> GaussianProcess:
    x, y = regression()
    return convert(mlp(), (x[:6], y[:6]), NOISE, DELTA, **settings).condition((x[6:], y[6:]))


def gps() -> dict[str, GaussianProcess]:
    x, y = regression()
    own: dict[str, dict[str, Any]] = {
        "weight space": {"inference": WeightSpace()},
        "function space": {"inference": FunctionSpace()},
        "diagonal": {"structure": Diagonal()},
        "block diagonal": {"structure": BlockDiagonal()},
        "kronecker": {"structure": Kronecker()},
        "gradient features": {"expansion": Expansion.empirical_fisher, "inference": WeightSpace()},
    }
    found = {name: convert(mlp(), (x, y), NOISE, DELTA, **settings) for name, settings in own.items()}
    found["classes"] = convert(mlp(), (x, torch.arange(10) % 2), CategoricalLikelihood(), DELTA, **own["kronecker"])
    found["conditioned, weight space"] = conditioned(**own["weight space"])
    found["conditioned, function space"] = conditioned(**own["function space"])
    found["tuned"] = tuned()
    return {**found, **{name: classifier(name) for name in CLASSIFIERS}}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    path = tmp_path_factory.mktemp("fuzzed") / "whole.safetensors"
    x, _ = regression(5)

    def answered(gp: GaussianProcess, inputs: Tensor) -> list[Tensor]:
        predicted = gp.predict(inputs)
        return [predicted.mean, predicted.epistemic, *left_out(gp)]

    def left_out(gp: GaussianProcess) -> list[Tensor]:
        """What a GP with targets says of its own examples."""
        expansion = gp.model.expansion
        if expansion.targets is None or gp.model.of_step or not gp.inference.exact:
            return []
        return [gp.leave_one_out().log_prob]

    def loads(build: Callable[[], nn.Module], inputs: Tensor) -> Callable[[Path], list[Tensor]]:
        return lambda place: answered(load(place, build, memory_budget=BUDGET), inputs)

    found = {}
    for name, gp in gps().items():
        save(gp, path)
        found[name] = Case(path.read_bytes(), loads(fresh, x), is_gp=True)
    optimizer, module, inputs, targets = normalised_1d(VOGN, num_samples=3)
    save(optimizer.gaussian_process((inputs, targets), generator=torch.Generator().manual_seed(0)), path)
    found["stacked"] = Case(path.read_bytes(), loads(lambda: copy.deepcopy(module), inputs), is_gp=True)
    save_checkpoint(path, {"network": dict(module.state_dict()), "optimizer": optimizer.state_dict(), "epoch": 3})
    found["checkpoint"] = Case(path.read_bytes(), checkpoint_leaves, is_gp=False)
    return found


def checkpoint_leaves(path: Path) -> list[Tensor]:
    """All tensors and numbers of a checkpoint in order."""

    def leaves(node: Any) -> list[Tensor]:
        if isinstance(node, Tensor):
            return [node]
        if isinstance(node, dict):
            return [leaf for key in sorted(node, key=str) for leaf in leaves(node[key])]
        if isinstance(node, list | tuple):
            return [leaf for member in node for leaf in leaves(member)]
        return [torch.tensor([ord(character) for character in repr(node)])]

    return leaves(load_checkpoint(path))


# Accidents: bytes change ----------------------------------------------------------------------------------------------


def flip_bit(content: bytes, random: Random) -> bytes:
    place = random.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << random.randrange(8)]) + content[place + 1 :]


def flip_bit_of_the_header(content: bytes, random: Random) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    return flip_bit(content[: 8 + length], random) + content[8 + length :]


def truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))]


def append(content: bytes, random: Random) -> bytes:
    return content + random.randbytes(random.choice([1, 8, 1000]))


def remove(content: bytes, random: Random) -> bytes:
    place = random.randrange(len(content))
    return content[:place] + content[place + random.choice([1, 8, 64]) :]


def overwrite(content: bytes, random: Random) -> bytes:
    place, count = random.randrange(len(content)), random.choice([1, 8, 64, 512])
    new = random.choice([random.randbytes(count), bytes(count), b"\xff" * count])
    return (content[:place] + new + content[place + count :])[: len(content)]


def exchange(content: bytes, random: Random) -> bytes:
    """Two parts of the file change places."""
    count = random.choice([8, 16, 128])
    first, second = sorted(random.randrange(len(content) - count) for _ in range(2))
    if second < first + count:
        return content
    a, b = content[first : first + count], content[second : second + count]
    return content[:first] + b + content[first + count : second] + a + content[second + count :]


def another_length(content: bytes, random: Random) -> bytes:
    length = random.choice([0, 1, 2**16, 2**31, 2**63, 2**64 - 1, len(content), random.randrange(2 * len(content))])
    return struct.pack("<Q", length) + content[8:]


ACCIDENTS = [flip_bit, flip_bit_of_the_header, truncate, append, remove, overwrite, exchange, another_length]


# Malice: entries change -----------------------------------------------------------------------------------------------

VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    3.5,
    10**30,
    10**999,
    "",
    "nonsense",
    "\ud800",
    [],
    {},
    [[]],
    ["a", "a"],
    {"name": []},
    {"name": "weight space", "structure": {"name": "dense", "rank": 3}},
    {"name": "weight space", "structure": None},
    float("nan"),
    float("inf"),
]


def changed_header(path: Path, random: Random) -> None:
    """A field of our header is missing or has a hostile value."""
    name = random.choice([*contents(path)[0], "more"])
    value = random.choice(VALUES)
    if name == "sha256" or (name == "tuning" and value is None) or (name == "dnn2gp" and isinstance(value, str)):
        return
    if name == "quadratic" and value is True:
        return
    drop = random.random() < 0.2 and name != "tuning"
    rewrite(path, lambda own: {k: v for k, v in {**own, name: value}.items() if not drop or k != name})


def hostile_text(path: Path, random: Random) -> None:
    depth = random.choice([10, 300, 20_000])
    texts = ["[" * depth, '{"a":' * depth + "1" + "}" * depth, '{"format": ' + "9" * depth + "}", "3", "\ufeff{}", "{}"]
    rewrite(path, lambda _: random.choice(texts))


def missing_tensor(path: Path, random: Random) -> None:
    name = random.choice([own for own in contents(path)[1] if not own.endswith("input_vectors")])
    rewrite(path, change_tensors=lambda own: {other: tensor for other, tensor in own.items() if other != name})


def missing_block(path: Path, random: Random) -> None:
    numbers = {name.split("/")[1].split(".")[0] for name in contents(path)[1] if name.endswith(".ranges")}
    if numbers:
        block = f"inference/{random.choice(sorted(numbers))}."
        rewrite(path, change_tensors=lambda own: {n: t for n, t in own.items() if not n.startswith(block)})


def renamed_tensor(path: Path, random: Random) -> None:
    name = random.choice([own for own in contents(path)[1] if not own.endswith("input_vectors")])
    new = random.choice([f"{name}x", name.upper(), "", "network/", name.replace("/", "."), f"inference/{10**6}.ranges"])
    rewrite(path, change_tensors=lambda own: {new if other == name else other: t for other, t in own.items()})


def another_shape(path: Path, random: Random) -> None:
    name = random.choice(list(contents(path)[1]))
    shapes: list[Callable[[Tensor], Tensor]] = [
        lambda tensor: tensor.unsqueeze(0),
        lambda tensor: tensor.unsqueeze(-1),
        lambda tensor: tensor.reshape(-1)[:0],
        lambda tensor: torch.cat([tensor.reshape(-1), tensor.reshape(-1)]),
        lambda tensor: tensor.reshape(*[1] * 30, -1),
        lambda tensor: tensor.new_empty(0, 10**9),
    ]
    change = random.choice(shapes)
    rewrite(path, change_tensors=lambda own: {**own, name: change(own[name])})


def another_dtype(path: Path, random: Random) -> None:
    dtypes = [torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.uint8, torch.complex64]
    name = random.choice([own for own in contents(path)[1] if own != "likelihood/sigma" and "network/" not in own])
    dtype = random.choice(dtypes)
    rewrite(path, change_tensors=lambda own: {**own, name: own[name].to(dtype)})


def not_finite(path: Path, random: Random) -> None:
    _, tensors = contents(path)
    trainable = set(contents(path)[0]["trainable"])
    names = [own for own, tensor in tensors.items() if tensor.is_floating_point()]
    name = random.choice([own for own in names if "network/" not in own or own.split("/")[1] in trainable])
    value = random.choice([torch.nan, torch.inf])
    tensors[name].reshape(-1)[random.randrange(tensors[name].numel())] = value
    rewrite(path, change_tensors=lambda _: tensors)


def other_numbers(path: Path, random: Random) -> None:
    """One number of a tensor is another: a GP of its own, if it is one."""
    _, tensors = contents(path)
    name = random.choice([own for own, tensor in tensors.items() if tensor.is_floating_point()])
    value = random.choice([0.0, -1.0, 1e-300, -1e-300, 1e30, -1e30, 1e300, -1e300])
    tensors[name].reshape(-1)[random.randrange(tensors[name].numel())] = value
    rewrite(path, change_tensors=lambda _: tensors)


def other_ranges(path: Path, random: Random) -> None:
    names = [name for name in contents(path)[1] if name.endswith(".ranges")]
    if names:
        name, place = random.choice(names), random.randrange(2)
        value = random.choice([-1, 1, 7, 10**9, 2**62, -(2**62)])
        tensors = contents(path)[1]
        tensors[name][0, place] += value
        rewrite(path, change_tensors=lambda _: tensors)


def other_entry(path: Path, random: Random) -> None:
    """The container says something else about a tensor."""
    name = random.choice([own for own in raw_header(path)[0] if own != "__metadata__"])
    numbers = [-1, 0, 1, 8, 2**31, 2**62, 10**30, 1.5, True, None, "8"]
    changes: dict[str, Callable[[Any], Any]] = {
        "dtype": lambda _: random.choice(["F64", "F32", "I64", "BOOL", "F4", "", 3, None, []]),
        "shape": lambda old: random.choice([[], old[::-1], [*old, 1], [random.choice(numbers)] * random.randrange(4)]),
        "data_offsets": lambda old: [random.choice([each, random.choice(numbers)]) for each in old],
    }
    field = random.choice(list(changes))

    old = raw_header(path)[0][name]
    new = {**old, field: changes[field](old[field])}
    if repr(new) != repr(old):
        with_raw_header(path, lambda header: {**header, name: new})


def other_order(path: Path, random: Random) -> None:
    """The entries of the container in another order, which means the same; or the names of two exchanged."""
    names = list(raw_header(path)[0])
    if random.random() < 0.5:
        random.shuffle(names)
        with_raw_header(path, lambda own: {name: own[name] for name in names})
    else:
        a, b = random.sample([name for name in names if name != "__metadata__"], 2)
        with_raw_header(path, lambda own: {**own, a: own[b], b: own[a]})


def other_metadata(path: Path, random: Random) -> None:
    value = random.choice(
        [None, 3, [], {}, {"dnn2gp": 3}, {"dnn2gp": "{}"}, {"dnn2gp": "{}", "sha256": ""}, {"a": "b"}]
    )
    with_raw_header(path, lambda header: {**header, "__metadata__": value})


CONTAINER = [other_entry, other_order, other_metadata]
MALICE = [
    changed_header,
    hostile_text,
    missing_tensor,
    missing_block,
    renamed_tensor,
    another_shape,
    another_dtype,
    not_finite,
    other_numbers,
    other_ranges,
]


def tree_of_a_checkpoint(path: Path, random: Random) -> None:
    """Other text as the tree, in a file without checksums."""
    value = random.choice(VALUES)
    trees = [value, {"__tensor__": value}, {"a": {"__pairs__": value}}, {"a": {"__pairs__": [value]}}]
    depth = random.choice([10, 300, 20_000])
    texts = ["[" * depth, '{"a":' * depth, "9" * depth, '{"a": 1, "a": 2}', *map(json.dumps, trees)]
    text = random.choice(texts).encode()
    own = {"dnn2gp_checkpoint": {"dtype": "U8", "shape": [len(text)], "data_offsets": [0, len(text)]}}
    header = json.dumps(own).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + text)


def damage(case: Case, path: Path, random: Random) -> str:
    """Write a file that differs from the whole one, and return the name of the damage."""
    malice = [*CONTAINER, *(MALICE if case.is_gp else [tree_of_a_checkpoint])]
    while True:
        path.write_bytes(case.content)
        if random.random() < 0.5:
            accident = random.choice(ACCIDENTS)
            name = accident.__name__
            path.write_bytes(accident(case.content, random))
        else:
            chosen = random.choice(malice)
            name = chosen.__name__
            chosen(path, random)
        if path.read_bytes() != case.content:
            return name


# The test -------------------------------------------------------------------------------------------------------------


def peak(*, reset: bool) -> int:
    """The most memory that the process has had since the last reset, in bytes; 0 where the system does not say."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def outcome(case: Case, path: Path, expected: list[Tensor]) -> str:
    """What became of a file: the type of the error, or whether its answers are the same; a raw error is raised."""
    try:
        found = case.answer(path)
    except TYPED as error:
        return type(error).__name__ if len(str(error)) < 2000 else f"{type(error).__name__} with a long message"
    same = len(found) <= len(expected) and all(  # a file without targets has no leave-one-out
        one.shape == other.shape and torch.allclose(one, other, rtol=1e-9, atol=1e-12)
        for one, other in zip(found, expected, strict=False)
    )
    return "unchanged" if same else "CHANGED"


@pytest.mark.slow
def test_damaged_files(cases: dict[str, Case], tmp_path: Path) -> None:
    path = tmp_path / "damaged.safetensors"
    names = list(cases)
    expected = {}
    for name, case in cases.items():
        path.write_bytes(case.content)
        expected[name] = case.answer(path)
    counts: Counter[str] = Counter()
    same: Counter[str] = Counter()
    before = peak(reset=True)
    for seed in range(COUNT):
        random = Random(seed)
        name = names[seed % len(names)]
        what = damage(cases[name], path, random)
        try:
            became = outcome(cases[name], path, expected[name])
        except Exception as error:
            raise AssertionError(f"seed {seed}: {what} of {name}: a raw {type(error).__name__}: {error}") from error
        if what in ("tree_of_a_checkpoint", "other_numbers") and became == "CHANGED":
            became = "another file"  # with checksums that are right, or as old as to have none
        counts[became] += 1
        assert became != "CHANGED", f"seed {seed}: {what} of {name} changed the answers"
        if became == "unchanged":
            same[what] += 1
    print(f"{COUNT} damaged files: {dict(counts)}; peak memory + {(peak(reset=False) - before) / 1e6:.0f} MB")
    print(f"unchanged answers: {dict(same)}")
    assert counts["FileFormatError"] > COUNT / 2
    assert peak(reset=False) - before < BUDGET
