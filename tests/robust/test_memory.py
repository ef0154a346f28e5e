"""Too little memory: an error with the figures and what else can be done, before anything large is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest
import torch
from features.memory_networks import allocated
from torch import nn

from dnn2gp import (
    CategoricalLikelihood,
    Dense,
    Diagonal,
    FunctionSpace,
    LinearisedMode,
    NetworkOutput,
    WeightSpace,
    convert,
)
from dnn2gp.features import JacobianFeatures, LayerwiseFeatures
from dnn2gp.inference import Mean
from dnn2gp.network import Network
from dnn2gp.support.errors import InputError, MemoryBudgetError
from dnn2gp.support.memory import check_budget, chunks, default_budget, holding, readable, require
from dnn2gp.weights import Expansion

from robust.support import DELTA, NOISE, mlp, regression, untouched

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (
            {"inference": WeightSpace()},
            r"precision of 26 weights needs 16.2 kB, more than the memory budget of 2 kB.*FunctionSpace.*Diagonal",
        ),
        (
            {"inference": FunctionSpace()},
            r"kernel matrix of the data \(20 × 20\) needs 9.6 kB, more than .* 2 kB.*last layer",
        ),
        ({}, r"A basis .* needs .* kB, more than the memory budget of 2 kB"),
    ],
)
def test_matrix_too_large(settings: dict, match: str) -> None:
    module = mlp()
    with untouched(module), pytest.raises(MemoryBudgetError, match=match):
        convert(module, regression(), NOISE, DELTA, memory_budget=2000, **settings)


@pytest.mark.parametrize("expand", [Expansion.gauss_newton, Expansion.empirical_fisher])
def test_one_example_too_large(expand) -> None:
    module = mlp()
    with (
        untouched(module),
        pytest.raises(
            MemoryBudgetError,
            match=r"examples at a time, .*needs [0-9.]+ k?B, more than.*freeze layers.*raise memory_budget",
        ),
    ):
        convert(module, regression(), NOISE, DELTA, structure=Diagonal(), memory_budget=500, expansion=expand)


def test_weights_too_many_to_square() -> None:
    """P × P for 1.5 million weights would be 18 TB: refused at once, and nothing of the kind is allocated."""
    module = nn.Sequential(nn.Linear(3, 300_000), nn.Linear(300_000, 1))
    x, y = regression(2, 3, 1, torch.float32)
    with (
        untouched(module),
        pytest.raises(MemoryBudgetError, match=r"1500001 weights .*54 TB"),
    ):
        convert(module, (x, y), NOISE, DELTA, inference=WeightSpace())


@pytest.mark.parametrize("structure", [Dense(), Diagonal()])
@pytest.mark.parametrize("budget", [19_000, 21_000])
def test_a_small_budget_changes_no_result(structure, budget: int) -> None:
    module, (x, y) = mlp(), regression(40)
    settings = {"structure": structure, "inference": WeightSpace()}
    large = convert(module, (x, y), NOISE, DELTA, **settings)
    with untouched(module):
        small = convert(
            module, (x, y), NOISE, DELTA, structure=structure, inference=WeightSpace(), memory_budget=budget
        )
    assert small.features.chunk(x) < 40
    torch.testing.assert_close(small.predict(x).variance, large.predict(x).variance)


@pytest.mark.parametrize("value", [0, -1, 0.5, float("inf"), float("nan"), "1GB", True, [1]])
def test_bad_budgets(value) -> None:
    with pytest.raises(
        InputError, match=r"expected a positive number of bytes, e.g. 4e9 for 4 GB; got .*half of the memory"
    ):
        check_budget(value)


def test_good_budgets() -> None:
    assert check_budget(None) is None
    assert check_budget(4e9) == 4_000_000_000
    assert isinstance(check_budget(4e9), int)
    assert default_budget() > 0


def test_chunks_cover_everything_once() -> None:
    for count, size in [(1, 1), (7, 3), (9, 3), (2, 5)]:
        assert [i for part in chunks(count, size) for i in range(part.start, part.stop)] == list(range(count))


def test_words() -> None:
    assert [readable(n) for n in (1, 1500, 2e6, 3e9, 4e12, 5e15)] == [
        "1 B",
        "1.5 kB",
        "2 MB",
        "3 GB",
        "4 TB",
        "5e+03 TB",
    ]
    with pytest.raises(
        MemoryBudgetError,
        match=r"This needs 2 kB, more than the memory budget of 1 kB. Do that. Or raise",
    ):
        require(2000, 1000, "This", "Do that.")


def test_large_activations_make_small_chunks_and_passes() -> None:
    """Few weights, large activations: the chunk is set by what a backward pass of K cotangents holds."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.zeros(64, 1, 16, 16)
    budget = 1_500_000
    features = JacobianFeatures(Network(module, x), x, memory_budget=budget)
    activations = 16 * 16 * 16 * 4  # bytes of one activation of one example
    assert features.chunk(x) * features.num_outputs * activations <= budget
    assert features.chunk(x) < budget // (3 * 8 * features.num_outputs * features.num_weights)  # by the rows alone
    seen = []
    forward = Network.__call__

    def watched(network, weights, inputs):
        seen.append(len(inputs))
        return forward(network, weights, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "__call__", watched)
        features.outputs(x)
    assert seen[:2] == [2, 3]  # the trial
    assert sum(seen[2:]) == 64
    assert max(seen) * 2 * activations <= budget


def test_factors_of_the_data_are_made_in_chunks(monkeypatch) -> None:
    x, y = regression()
    gp = convert(mlp(), (x, y), NOISE, DELTA, inference=FunctionSpace(), memory_budget=18_000)
    sizes = []
    factors = LayerwiseFeatures.factors

    def watched(features, inputs, cotangents=None, *, apart=False):
        sizes.append(len(inputs))
        return factors(features, inputs, cotangents, apart=apart)

    monkeypatch.setattr(LayerwiseFeatures, "factors", watched)
    blocks = list(gp.inference.sites._made("factors"))
    assert len(blocks) > 1
    assert sum(part.stop - part.start for part, _ in blocks) == len(x)
    assert max(sizes) <= gp.features.chunk(x)
    factor = 8 * gp.model.expansion.num_sites**2
    extra = 3 * 8 * gp.features.num_outputs * gp.model.expansion.num_sites  # a test input's cross kernel with the data
    size = gp.inference.chunk(gp.features, x)
    assert size <= gp.features.chunk(x, fixed=factor, extra=extra) < len(x)
    assert gp.features.chunk(x, fixed=factor, extra=extra) < gp.features.chunk(x)


def test_blocks_of_a_kernel_match_although_the_free_memory_changes(monkeypatch) -> None:
    """Whatever fits each time it is asked for, rows and columns are divided in the same way."""
    x, y = regression()
    expected = convert(mlp(), (x, y), NOISE, DELTA, inference=FunctionSpace()).inference.sites.gram()
    sites = convert(mlp(), (x, y), NOISE, DELTA, inference=FunctionSpace(), memory_budget=60_000).inference.sites
    sites._kept = None
    monkeypatch.setattr(type(sites), "kept", lambda self: False)
    sizes = cycle((7, 3, 5, 2))
    monkeypatch.setattr(LayerwiseFeatures, "chunk", lambda *args, **settings: next(sizes))
    torch.testing.assert_close(sites.gram(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mean", [NetworkOutput(), LinearisedMode()])
def test_a_mean_away_from_the_network_counts(mean: Mean) -> None:
    """f_w(x) + J(x)c is summed in float64, from copies of factors that are twice as large as those of float32."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten()
        module, x = nn.Sequential(*layers, nn.Linear(8 * 144, 5)), torch.randn(200, 1, 12, 12)
    data = x[:20], torch.arange(20) % 5
    gp = convert(module, data, CategoricalLikelihood(), 1.0, structure=Diagonal(), mean=mean, memory_budget=20e6)
    gp.predict(x[:2])
    assert allocated(lambda: gp.predict(x), 0) <= 20e6


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of resident memory is Linux's")
@pytest.mark.parametrize("network", ["LeNet-5", "ResNet", "transformer"])
def test_the_process_grows_by_no_more_than_the_budget(network: str) -> None:
    """100 MB, and a tenth for what malloc and libraries keep."""
    program = Path(__file__).with_name("whole_calls.py")
    done = subprocess.run([sys.executable, str(program), network], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    assert max(peaks.values()) <= 110e6, peaks


def test_data_and_earlier_results_count() -> None:
    """What is held is taken from the budget, and errors say so."""
    features = convert(mlp(), regression(), NOISE, DELTA, memory_budget=10_000_000).features
    with holding(6_000_000):
        assert features.budget() == 4_000_000
        with pytest.raises(MemoryBudgetError, match=r"needs 5 MB, more than .* of 10 MB, of which 6 MB are taken"):
            require(5_000_000, features.budget(), "This", "Do that.")
    assert features.budget() == 10_000_000


def test_data_larger_than_the_budget() -> None:
    """The copy that convert makes counts."""
    x, y = regression(200_000, 3, 1, torch.float32)
    module = nn.Linear(3, 1)
    with untouched(module), pytest.raises(MemoryBudgetError, match=r"copy of the data \(200000 examples\).*fewer"):
        convert(module, (x, y), NOISE, DELTA, memory_budget=3e6)
