"""What engines have learned about a network: shared by all weights, independent of the order of calls, and copied."""

from __future__ import annotations

import copy
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from features.support import close, constant, engine, explicit, falls_back, randn
from torch import Tensor, nn

from dnn2gp import CategoricalLikelihood
from dnn2gp.features.knowledge import Knowledge
from dnn2gp.optim import VOGN

pytestmark = pytest.mark.filterwarnings("ignore:No layer rule")


class ByLength(nn.Module):
    """A rule covers the weight for an even number of tokens, and none does for an odd one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.w, self.last = nn.Linear(3, 4), nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        hidden = F.linear(hidden, self.w) if x.shape[1] % 2 == 0 else torch.einsum("nti,io->nto", hidden, self.w)
        return self.last(torch.tanh(hidden).mean(1))


def by_length() -> ByLength:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ByLength().double()


def even() -> Tensor:
    return randn(5, 4, 3)


def odd() -> Tensor:
    return randn(6, 3, 3, seed=2)


def test_copies_at_other_weights_know_what_any_of_them_learns():
    module = by_length()
    features = engine(module, even())
    moved = features.at(features.anchor * 0.5)
    for inputs in (odd(), even()):
        close(features.jacobian(inputs), explicit(module, inputs))
    torch.nn.utils.vector_to_parameters(moved.anchor, module.parameters())
    for inputs in (odd(), even(), odd()):
        close(moved.jacobian(inputs), explicit(module, inputs))
        again = moved.at(moved.anchor.clone())
        close(again.jacobian(inputs), explicit(module, inputs))


def test_training_on_inputs_of_two_lengths():
    """As the third step of VOGN did not."""
    module = by_length()
    optimizer = VOGN(module, CategoricalLikelihood(), 11)
    for inputs in (even(), odd(), even(), odd()):
        optimizer.step(inputs, torch.arange(len(inputs)) % 2)
    variances = optimizer.posterior().precision.inverse_diagonal()
    for inputs in (even(), odd()):
        J = explicit(module, inputs)
        expected = torch.einsum("nkp,p,mlp->nkml", J, variances, J)
        torch.testing.assert_close(optimizer.kernel(inputs).full(inputs), expected, rtol=1e-10, atol=1e-12)


def test_one_warning_for_each_weight():
    module = by_length()
    with falls_back(1):
        features = engine(module, even())
        features.jacobian(odd())
        features.jacobian(randn(5, 5, 3))
        features.at(features.anchor + 1).jacobian(randn(5, 7, 3))


@pytest.mark.slow
@pytest.mark.parametrize("work", ["kernel_full", "kernel_trace", "ggn_diagonal", "kronecker", "covariance"])
def test_plans_do_not_depend_on_the_calls_before_them(work):
    budget = 1_000_000
    plans = []
    for before in ((), (odd(),), (even(), odd(), randn(4, 8, 3))):
        features = engine(by_length(), even(), budget)
        for inputs in before:
            features.kernel_full(inputs, constant(features))
        plans.append([features.plan(work, inputs) for inputs in (even(), odd())])
    assert plans[0] == plans[1] == plans[2]
    assert plans[0][0].operations != plans[0][1].operations


@pytest.mark.parametrize("make", [copy.deepcopy, lambda features: pickle.loads(pickle.dumps(features))])
def test_a_copy_gives_the_same_results(make):
    module = by_length()
    features = engine(module, even())
    features.jacobian(odd())
    expected = [features.kernel_full(inputs, constant(features)) for inputs in (even(), odd())]
    copied = make(features)
    del features
    module.w.data.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is learned again
        for inputs, kernel in zip((even(), odd()), expected, strict=True):
            assert torch.equal(copied.kernel_full(inputs, constant(copied)), kernel)
            assert torch.equal(copied.at(copied.anchor.clone()).kernel_full(inputs, constant(copied)), kernel)


def test_threads_learn_a_fact_once():
    knowledge, found = Knowledge(), []

    def learn() -> int:
        found.append(0)
        return knowledge.find("nested", lambda: 1) + 1

    with ThreadPoolExecutor(8) as pool:
        facts = list(pool.map(lambda _: knowledge.find("outer", learn), range(50)))
    assert facts == [2] * 50
    assert len(found) == 1
    assert (knowledge.get("nested"), knowledge.get("other")) == (1, None)


def test_what_could_not_be_learned_is_not_known():
    knowledge = Knowledge()
    with pytest.raises(RuntimeError):
        knowledge.find("fact", lambda: (_ for _ in ()).throw(RuntimeError))
    assert knowledge.find("fact", lambda: 3) == 3


def test_checks_get_rarer():
    knowledge = Knowledge()
    due = [step for step in range(1, 1001) if knowledge.check_due(1)]
    assert due == [16, 32, 64, 128, 256, 512]
