"""Which inference is chosen, and what a choice is."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from functools import partial

import pytest
import torch
from torch import nn

from dnn2gp import CategoricalLikelihood, Dense, Diagonal, FunctionSpace, Iterative, Kronecker, WeightSpace, convert
from dnn2gp.inference import Inference, NetworkOutput, choice
from dnn2gp.inference.base import Cost
from dnn2gp.inference.calibration import Calibration
from dnn2gp.support.errors import ApproximationWarning, InputError
from dnn2gp.weights import Expansion

from problems import problem

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


@pytest.mark.parametrize(
    ("kind", "examples", "space"),
    [
        ("gaussian", 8, FunctionSpace()),  # 16 sites, 17 weights
        ("gaussian", 9, WeightSpace()),  # 18 sites
        ("categorical", 16, FunctionSpace()),  # softmax of 2 outputs has one site per example
        ("categorical", 17, WeightSpace()),  # as many sites as weights
    ],
)
def test_the_smaller_matrix_is_chosen(kind, examples, space):
    case = problem(kind, examples)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta)
    assert gp.inference.method == space
    costs = {cost.space: cost for cost in gp.costs()}
    assert costs["weight space"].size == 17
    assert costs["function space"].size == (examples if kind == "categorical" else 2 * examples)
    assert gp.costs()[0] == costs[space.name]
    assert str(costs["weight space"]).startswith("weight space: a 17 × 17 matrix, ")


def test_all_ways_are_listed_with_their_accuracy():
    """Layers of 3 × 4 + 3 and 2 × 3 + 2 weights on 60 examples with one site each."""
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double(), torch.randn(60, 4).double()
    gp = convert(network, (x, (x[:, 0] > 0).long()), CategoricalLikelihood(), 1.0)
    costs = {cost.space: cost for cost in gp.costs()}
    assert list(costs) == ["weight space", "iterative", "function space", "block diagonal", "kronecker", "diagonal"]
    assert [costs[name].accuracy for name in ("weight space", "function space")] == ["exact", "exact"]
    assert "5%" in costs["iterative"].accuracy
    assert "4.6 %" in costs["block diagonal"].accuracy
    assert str(costs["weight space"]).endswith("; exact")
    blocks, M = (15, 8), 60
    assert costs["block diagonal"].size == 15
    assert costs["block diagonal"].operations == pytest.approx(sum(p**2 * (M + p / 3) for p in blocks))
    assert costs["block diagonal"].bytes == 3 * 8 * sum(p**2 for p in blocks)
    assert costs["kronecker"].size == 5  # inputs with a bias
    assert costs["kronecker"].bytes == 3 * 8 * sum(side**2 for side in (5, 3, 4, 2))
    assert costs["diagonal"].bytes == 3 * 8 * 23
    assert costs["diagonal"].operations < costs["block diagonal"].operations < costs["weight space"].operations


def test_ways_of_gradient_features_have_no_kronecker_factors():
    case = problem("categorical", 5)
    data = case.x, case.y
    gp = convert(case.module, data, case.likelihood, case.delta, expansion=Expansion.empirical_fisher)
    assert [cost.space for cost in gp.costs()][-2:] == ["block diagonal", "diagonal"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"structure": Dense()}, FunctionSpace()),  # exact in either space
        ({"structure": Kronecker()}, WeightSpace(Kronecker())),
        ({"inference": WeightSpace(Kronecker())}, WeightSpace(Kronecker())),
        ({"inference": WeightSpace(), "structure": Kronecker()}, WeightSpace(Kronecker())),
        ({"inference": WeightSpace(Kronecker()), "structure": Kronecker()}, WeightSpace(Kronecker())),
        ({"inference": FunctionSpace(), "structure": Dense()}, FunctionSpace()),
    ],
    ids=str,
)
def test_structure_and_inference(arguments, expected):
    case = problem("categorical", 5)
    delta = {"0": 1.0, "2": 2.0}
    gp = convert(case.module, (case.x, case.y), case.likelihood, delta, **arguments)
    assert gp.inference.method == expected
    assert gp.inference.exact is (expected in (WeightSpace(), FunctionSpace()))


@pytest.mark.parametrize(
    "arguments",
    [
        {"inference": FunctionSpace(), "structure": Diagonal()},
        {"inference": WeightSpace(Kronecker()), "structure": Diagonal()},
    ],
    ids=str,
)
def test_contradictions_are_refused(arguments):
    case = problem("categorical", 5)
    with pytest.raises(InputError, match=r"structure=Diagonal\(\).*inference="):
        convert(case.module, (case.x, case.y), case.likelihood, case.delta, **arguments)


@pytest.mark.parametrize("inference", [WeightSpace(), WeightSpace(Kronecker()), FunctionSpace()], ids=repr)
def test_a_choice_is_a_frozen_value(inference):
    assert Inference.decoded(inference.encoded()) == inference
    assert Inference.decoded(json.loads(json.dumps(inference.encoded()))) == inference
    assert hash(inference) == hash(Inference.decoded(inference.encoded()))
    with pytest.raises(FrozenInstanceError):
        inference.structure = Dense()


@pytest.mark.parametrize("value", ["nothing", 3, None, {"name": "function space", "rank": 3}, {"rank": 3}], ids=repr)
def test_choices_that_are_not_known(value):
    with pytest.raises(InputError):
        Inference.decoded(value)


@pytest.mark.parametrize("value", [FunctionSpace, partial(FunctionSpace), "function space", Kronecker()], ids=repr)
def test_only_a_value_is_a_choice(value):
    with pytest.raises(InputError, match="inference: expected"):
        Inference.checked("inference", value)


def test_reprs_are_one_line():
    case = problem("gaussian", 8)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta)
    assert repr(gp) == (
        "GaussianProcess(8 examples, 2 outputs, 17 weights; GaussianLikelihood; dense posterior in function space; "
        "mean: linearised mode)"
    )
    around = convert(case.module, (case.x, case.y), case.likelihood, case.delta, mean=NetworkOutput())
    assert repr(around).endswith("; mean: network output)")
    calibrated = replace(around, calibration=Calibration(0.5))
    assert repr(calibrated).endswith("; mean: network output; Calibration(scale=0.5))")
    assert repr(gp.predict(case.x_test)) == "Predictive(4 inputs, outputs of shape (2,))"
    assert repr(gp.prior) == "Gaussian(17 weights, diagonal precision)"
    value = gp.evidence()
    assert float(value) == value.value
    assert str(value).startswith(f"log evidence {value.value:.2f} = ")


@pytest.mark.parametrize("limit", ["operations", "memory"])
def test_what_is_too_large_for_exact_inference_is_iterative(limit, monkeypatch):
    case = problem("categorical", 40)
    if limit == "operations":
        monkeypatch.setattr(choice, "MOST_OPERATIONS", 1e3)
        budget = None
    else:
        monkeypatch.setattr(WeightSpace, "cost", lambda self, M, P: Cost("weight space", P, 1.0, 10**9))
        monkeypatch.setattr(FunctionSpace, "cost", lambda self, M, P: Cost("function space", M, 1.0, 10**9))
        budget = 1e8
    with pytest.warns(ApproximationWarning, match=r"matrix, .* and about a second on one core. Instead, Iterative"):
        gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, memory_budget=budget)
    assert gp.inference.method == Iterative()
    exact = convert(case.module, (case.x, case.y), case.likelihood, case.delta, structure=Dense())
    assert exact.inference.method == WeightSpace()


def test_the_rank_fits_into_the_memory_budget():
    """For a network with 10⁷ weights in float32, each column takes 40 MB."""
    sizes = {Iterative(rank=rank, samples=samples).bytes(10**7, 4) for rank, samples in ((512, 64), (32, 16))}
    assert max(sizes) > 60e9
    assert min(sizes) < 9e9
