"""The order in which a kernel is computed: each pair of examples once, and as many factors made as a plan says."""

from __future__ import annotations

import pytest
import torch

from dnn2gp.features.budget.kernel_blocks import PairPlan, PairSide, pairs
from dnn2gp.features.budget.peak import Peak
from dnn2gp.features.factors import Factors


class Counted:
    """Factors that are nothing, and how many examples they were made for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, part: slice) -> Factors:
        self.count += part.stop - part.start
        return Factors.of_rows(torch.zeros(part.stop - part.start, 1, 1))

    def side(self, num_examples: int) -> PairSide:
        return PairSide(num_examples, 1, 4, Peak(((0.0, 0.0),)), self)


@pytest.mark.parametrize("held", [1, 3, 6, 20])
@pytest.mark.parametrize("columns", [None, 7, 13])
@pytest.mark.parametrize("right_held", [False, True])
def test_as_many_as_the_plan_says(held, columns, right_held):
    rows, block = 13, min(held, 3)
    plan = PairPlan(block, min(held, rows), right_held and columns is not None, 0)
    made = Counted()
    right = None if columns is None else made.side(columns)
    seen = torch.zeros(rows, rows if columns is None else columns)
    for own, others, left, mate in pairs(made.side(rows), right, plan, "a kernel"):
        seen[own, others] += 1
        if columns is None and own != others:
            seen[others, own] += 1
        assert (left.num_examples, mate.num_examples) == (own.stop - own.start, others.stop - others.start)
    assert (seen == 1).all()
    assert made.count == plan.made(rows, columns)
