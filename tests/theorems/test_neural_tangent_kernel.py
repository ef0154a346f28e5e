"""The kernel at δ = 1 is the neural tangent kernel, by brute force; with other priors J V J'ᵀ."""

from __future__ import annotations

import pytest
import torch

from dnn2gp import Kernel, convert

from problems import problem
from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


@pytest.mark.parametrize("outputs", [1, 3])
def test_at_delta_one_it_is_the_ntk(outputs):
    case = problem("gaussian", 5, outputs)
    J, J_test = brute_force.jacobian(case.module, case.x), brute_force.jacobian(case.module, case.x_test)
    ntk = torch.einsum("nkp,mlp->nkml", J, J_test)
    for kernel in (
        convert(case.module, (case.x, case.y), case.likelihood, 1.0).kernel,
        Kernel.neural_tangent(case.module, case.x),
    ):
        torch.testing.assert_close(kernel.full(case.x, case.x_test), ntk, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(
            kernel.trace(case.x, case.x_test), torch.einsum("nkmk->nm", ntk), rtol=1e-12, atol=1e-13
        )
        torch.testing.assert_close(
            kernel.diagonal(case.x, case.x_test), torch.einsum("nkmk->nmk", ntk), rtol=1e-12, atol=1e-13
        )


@pytest.mark.parametrize("budget", [None, 10_000])
def test_with_a_prior_it_is_j_v_j(budget):
    """Also in chunks of few examples, where the symmetric kernel is made from one triangle."""
    case = problem("gaussian", 11, 2)
    J = brute_force.jacobian(case.module, case.x)
    expected = torch.einsum("nkp,p,mlp->nkml", J, 1 / case.delta, J)
    gp = convert(case.module, (case.x, case.y), case.likelihood, case.delta, memory_budget=budget)
    if budget:
        assert gp.features.plan("kernel_full", case.x).chunk < 11 / 2  # at least three chunks
    torch.testing.assert_close(gp.kernel.full(case.x), expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(gp.kernel.trace(case.x), torch.einsum("nkmk->nm", expected), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(gp.kernel.diagonal(case.x), torch.einsum("nkmk->nmk", expected), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(gp.kernel.full(case.x), gp.kernel.full(case.x, case.x), rtol=1e-12, atol=1e-13)
