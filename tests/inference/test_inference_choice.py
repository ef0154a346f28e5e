"""Which space is chosen, and that what both cost is stated."""

from __future__ import annotations

import pytest

from dnn2gp import FunctionSpace, WeightSpace, convert

from problems import problem

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


@pytest.mark.parametrize(
    ("kind", "examples", "space"),
    [
        ("gaussian", 8, FunctionSpace),  # 16 sites, 17 weights
        ("gaussian", 9, WeightSpace),  # 18 sites
        ("categorical", 16, FunctionSpace),  # softmax of 2 outputs has one site an example
        ("categorical", 17, WeightSpace),
    ],
)
def test_the_smaller_matrix_is_chosen(kind, examples, space):
    case = problem(kind, examples)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta)
    assert type(gp.inference) is space
    weight, function = gp.costs()
    assert weight.size == 17
    assert function.size == (examples if kind == "categorical" else 2 * examples)
    chosen, other = (weight, function) if space is WeightSpace else (function, weight)
    assert chosen.size <= other.size
    assert str(weight).startswith("weight space: a 17 × 17 matrix, ")


def test_reprs_are_one_line():
    case = problem("gaussian", 8)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta)
    assert repr(gp) == (
        "GaussianProcess(8 examples, 2 outputs, 17 weights; GaussianLikelihood; dense posterior in function space)"
    )
    assert repr(gp.predict(case.x_test)) == "Predictive(4 inputs, outputs of shape (2,))"
    assert repr(gp.prior) == "Gaussian(17 weights, diagonal precision)"
    value = gp.evidence()
    assert float(value) == value.value
    assert str(value).startswith(f"log evidence {value.value:.2f} = ")
