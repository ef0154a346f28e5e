"""`convert` on every network of the zoo, in float64 and float32, against brute-force autograd."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest

from zoo import ZOO, specimen

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from network_table import TOLERANCE, gaps, render

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ZOO)
def test_agrees_with_brute_force(name, dtype):
    for quantity, gap in gaps(name, dtype).items():
        assert gap < TOLERANCE[dtype], quantity


@pytest.mark.parametrize("name", ZOO)
def test_every_weight_has_a_layer_rule(name):
    from dnn2gp import Kernel

    case = specimen(name)
    assert Kernel.neural_tangent(copy.deepcopy(case.module), case.inputs).features.rest is None


def test_the_table_in_the_docs_has_every_network():
    table = (Path(__file__).parents[2] / "docs" / "networks.md").read_text()
    assert [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][2:] == list(ZOO)
    assert render({}).splitlines()[0] in table
