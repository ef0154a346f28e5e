"""Plans and budgets, measured: the most that torch allocates at once while a product is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from features.memory_networks import allocated, products
from torch import nn

from dnn2gp.features import JacobianFeatures, LayerwiseFeatures
from dnn2gp.features.budget.peak import _watched
from dnn2gp.network import Network
from dnn2gp.support.errors import InputError, MemoryBudgetError
from dnn2gp.weights.structures import DiagonalPrecision


def measured(work: str, count: int, budget: float, out: Path | None = None, network: str = "LeNet") -> tuple[int, int]:
    """The peak of torch's allocations while the product is computed and planned, and the peak of the plan."""
    found = products(network, count, budget, out)[work]
    plans = []

    def run() -> object:
        result, plan = found()
        plans.append(0 if plan is None else plan.bytes)
        return result

    mapped = 0 if out is None else (10 * count) ** 2 * 4  # a view of the file is not memory
    return allocated(run, mapped), plans[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "count", "budget"),
    [("kernel_full", 200, 60e6), ("kernel_trace", 400, 40e6), ("ggn_diagonal", 400, 30e6), ("covariance", 400, 40e6)],
)
def test_never_more_than_the_budget(work, count, budget):
    peak, planned = measured(work, count, budget)
    assert planned <= budget
    assert peak <= budget


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "work"),
    [
        ("many words", "kernel_trace"),
        ("longer than the first", "ggn_diagonal"),
        ("longer than the first", "jvp"),
        ("frozen", "covariance"),
        ("frozen", "outputs"),
        ("transient", "kernel_trace"),
        ("depthwise", "kronecker"),
        ("deep", "kernel_full"),
        ("deep", "cross"),
        ("words", "cross"),
    ],
)
def test_never_more_than_the_budget_whatever_the_network(network, work):
    """Memory that no layer rule knows of: what frozen or unseen layers hold, longer inputs, large tables."""
    budget, count = (60e6, 40) if network == "words" else (60e6, 150)
    peak, planned = measured(work, count, budget, network=network)
    assert planned <= budget
    assert peak <= budget


@pytest.mark.slow
def test_a_kernel_larger_than_the_budget_goes_to_a_file(tmp_path):
    """250 examples, 10 outputs: 25 MB in the file, 20 MB in memory."""
    peak, planned = measured("kernel_full", 250, 20e6, tmp_path / "kernel.bin")
    assert (tmp_path / "kernel.bin").stat().st_size == (250 * 10) ** 2 * 4
    assert planned <= 20e6
    assert peak <= 20e6


@pytest.fixture(scope="module")
def features():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 5))
    x = torch.zeros(50, 4)
    return LayerwiseFeatures(Network(module, x), x, memory_budget=1e6), x


def test_a_plan_says_what_is_ahead(features):
    engine, x = features
    plan = engine.plan("kernel_full", x)
    assert (plan.num_examples, plan.result_bytes) == (50, 4 * 250**2)
    assert plan.bytes <= plan.budget == 1e6
    assert str(plan).startswith("kernel_full of 50 examples: ")
    for word in ("chunks of", "250 kB", "operations", "1 MB"):
        assert word in str(plan)
    assert engine.plan("ggn_diagonal", x).result_bytes == 8 * engine.num_weights
    with pytest.raises(InputError, match=r"expected one of .*kernel_full.*got 'kernel'"):
        engine.plan("kernel", x)


def test_operations_of_a_kernel_are_those_of_its_factors(features):
    """N²/2 pairs: 2 (K² o + i) operations for each layer, with a bias among the i inputs."""
    engine, x = features
    pair = 2 * (25 * 30 + 5) + 2 * (25 * 5 + 31)
    assert engine.pair_operations(x, 5, 5) == pair
    assert engine.plan("kernel_full", x).operations >= 50**2 / 2 * pair


def test_what_cannot_fit_is_an_error_with_figures(features):
    engine, _ = features
    many = torch.zeros(2000, 4)
    with pytest.raises(MemoryBudgetError, match=r"400 MB, more than the memory budget of 1 MB.*out=FILE"):
        engine.plan("kernel_full", many)
    assert engine.plan("kernel_full", many, out=True).bytes <= 1e6
    engine = LayerwiseFeatures(engine.network, many, memory_budget=4000)
    with pytest.raises(MemoryBudgetError, match=r"more than the memory budget of 4 kB"):
        engine.plan("ggn_diagonal", many)


def test_what_is_hopeless_is_not_even_tried(monkeypatch):
    """400 outputs and 20,400 weights: a single example has 33 MB of rows."""
    module, x = nn.Linear(50, 400), torch.zeros(10, 50)
    features = JacobianFeatures(Network(module, x), x, memory_budget=1e6)

    def made(*args, **kwargs):
        raise AssertionError("factors were made")

    monkeypatch.setattr(JacobianFeatures, "factors", made)
    for work in ("ggn_diagonal", "jacobian", "covariance"):
        with pytest.raises(MemoryBudgetError, match=r"a single example at a time.* needs .*fewer inputs"):
            features.plan(work, x)


@pytest.mark.parametrize("budget", [None, 3e6])
def test_more_rows_than_are_tried(budget):
    """With 100 outputs memory is measured for a part of them; what is expected must not be less than what is needed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(8, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 6, 3), nn.Flatten(), nn.Linear(216, 100)
    x = torch.zeros(8, 8, 8, 8)
    features = LayerwiseFeatures(Network(nn.Sequential(*layers), x), x, memory_budget=budget)
    found = _watched(lambda count: features.factors(x[:count]).compact(), 5).peak()
    assert features.need(x, 100)(5) >= found


def test_one_delta_a_layer_and_one_a_weight_are_measured_apart(features):
    engine, x = features
    for values in (torch.ones(engine.num_weights), torch.arange(1.0, engine.num_weights + 1)):
        engine.kernel_trace(x, DiagonalPrecision(values))
    known = engine.knowledge._facts.items()
    needs = [fact.need(20) for key, fact in known if key[-2] == "J Σ^½" and DiagonalPrecision in key[-1]]
    assert len(needs) == 2
    assert needs[1] > 2 * needs[0]
