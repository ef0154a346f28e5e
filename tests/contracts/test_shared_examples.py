"""Two and three processes that share the examples give the same answers as one, and raise errors instead of hanging."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import shared_examples

import dnn2gp

pytestmark = pytest.mark.slow
SCRIPT = Path(shared_examples.__file__)
Found = list[dict[str, Any]]


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


def started(size: int, folder: Path) -> Found:
    """What each process found; the last one is killed in the end."""
    port = free_port()
    processes = [forked.Process([SCRIPT, rank, size, port, folder], checked=False) for rank in range(size)]
    ended = [process.wait(240) for process in processes]
    codes = [each.returncode for each in ended]
    assert codes == [0] * (size - 1) + [-9], "\n".join(each.stderr for each in ended)
    found = [torch.load(folder / f"{rank}.pt") for rank in range(size)]
    for rank in range(size - 1):
        found[rank]["killed"] = torch.load(folder / f"{rank}.killed.pt")
    return found


@pytest.fixture(scope="module", params=[2, 3])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Path]:
    folder = tmp_path_factory.mktemp("shared")
    return started(request.param, folder), folder


@pytest.fixture(scope="module")
def one() -> dict[str, shared_examples.Answers]:
    return shared_examples.answers(None)


def test_answers_are_those_of_one_process(several: tuple[Found, Path], one: dict[str, shared_examples.Answers]) -> None:
    exact = dict.fromkeys(("mode", "blocks", "on demand", "own noise", "VOGN", "OGN", "VOGGN"), 1e-10)
    searched = dict.fromkeys(("validation in chunks", "one validation example"), 1e-2)  # in float32
    tolerances = {**exact, "small noise": 1e-6, **searched}  # in the other cases, a search finds δ
    for found in several[0]:
        answers = found["answers"]
        assert len(answers) >= 10
        for case in answers:
            expected = one[case]
            assert answers[case].keys() == expected.keys()
            for name, value in expected.items():
                gap = (answers[case][name].double() - value.double()).abs().max()
                allowed = tolerances.get(case, 1e-7) * value.double().abs().max()
                assert gap <= allowed, f"{case}, {name}: {gap:.2g} > {allowed:.2g}"


def test_answers_are_the_same_in_all_processes(several: tuple[Found, Path]) -> None:
    first, *others = (found["answers"] for found in several[0])
    for other in others:
        for case, expected in first.items():
            for name, value in expected.items():
                assert torch.equal(other[case][name], value), f"{case}, {name}"


def test_the_file_has_the_data_of_all_processes(
    several: tuple[Found, Path], one: dict[str, shared_examples.Answers]
) -> None:
    gp = dnn2gp.load(several[1] / "gp.safetensors", shared_examples.network(3))
    prediction, left, expected = gp.predict(shared_examples.test_inputs()), gp.leave_one_out(), one["mode"]
    torch.testing.assert_close(prediction.latent_covariance, expected["covariance"], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(left.log_prob, expected["log prob"], rtol=1e-9, atol=1e-12)
    assert abs(float(gp.evidence()) - expected["evidence"].item()) < 1e-9


def test_the_file_of_data_on_demand_has_all_targets(
    several: tuple[Found, Path], one: dict[str, shared_examples.Answers]
) -> None:
    x, y, _ = shared_examples.data()
    gp = dnn2gp.load(several[1] / "on_demand.safetensors", shared_examples.network(3), data=(x, y))
    left, expected = gp.leave_one_out(), one["on demand"]
    torch.testing.assert_close(left.log_prob, expected["log prob"], rtol=1e-9, atol=1e-12)


def test_traffic_is_counted(several: tuple[Found, Path]) -> None:
    for found in several[0]:
        sums, exchanges, sent, seconds = found["traffic"]
        assert 0 < sums < exchanges
        assert sent > 0
        assert seconds > 0


def test_a_killed_process_is_an_error_in_the_others(several: tuple[Found, Path]) -> None:
    found = several[0]
    for rank, each in enumerate(found[:-1]):
        words, seconds = each["killed"]
        assert f"process {rank} of {len(found)}" in words
        assert seconds < 30


@pytest.fixture(scope="module")
def two(several: tuple[Found, Path]) -> Found:
    if len(several[0]) > 2:
        pytest.skip("with two processes only")
    return several[0]


@pytest.mark.parametrize(
    ("mistake", "kind", "word"),
    [
        ("weights", "ProcessError", "network"),
        ("examples", "ProcessError", "number of examples"),
        ("delta", "ProcessError", "arguments"),
        ("seed", "ProcessError", "settings"),
        ("places", "ProcessError", "different places"),
        ("function space", "InputError", "inference"),
        ("few examples", "InputError", "data"),
        ("condition", "InputError", "condition"),
        ("details", "InputError", "details"),
        ("batch norm", "InputError", "network"),
        ("step", "InputError", "info"),
        ("validation", "ProcessError", "validation set"),
    ],
)
def test_mistakes_are_errors_in_every_process(two: Found, mistake: str, kind: str, word: str) -> None:
    for found in two:
        words = found["mistakes"][mistake]
        assert words.startswith(kind), words
        assert word in words


def test_an_error_in_one_process_is_one_in_all(two: Found) -> None:
    first, second = (found["mistakes"]["not finite"] for found in two)
    assert first.startswith("ProcessError")
    assert "process 1 has failed" in first
    assert second.startswith("InputError")


def test_the_example_prints_the_same_under_torchrun(tmp_path: Path) -> None:
    script = SCRIPT.parents[2] / "examples" / "several_processes.py"
    alone = forked.run([script, "--smoke"], cwd=tmp_path).stdout.splitlines()
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, "--smoke"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(dnn2gp.__file__).parents[1])}
    ended = subprocess.run(launched, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    printed = ended.stdout.splitlines()
    assert [line for line in printed if not line.startswith("[")] == alone
    assert sum(line.startswith("[process ") for line in printed) == 2


def test_a_process_that_does_not_come_is_an_error(two: Found) -> None:
    assert "process 0 of 2" in two[0]["slow"]
    assert "timeout" in two[0]["slow"]
