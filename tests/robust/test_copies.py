"""Copies of a GP: deepcopy, pickle and worker processes predict what it predicts."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import pytest
import torch

from robust.shared_networks import converted, network, predicted, work

pytestmark = [
    pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning"),
    pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.TrainModeWarning"),
    pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.FallbackWarning"),
]
SPACES = ["function", "weight"]


def assert_equal(found, expected) -> None:
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", ["mlp", "attention", "stateful", "uncopyable"])
def test_deep_copies(name, space):
    module = network(name)
    gp = converted(module, space)
    expected = predicted(gp)
    copied = copy.deepcopy(gp)
    for parameter in module.parameters():
        parameter.data.zero_()
    gp.features.anchor.zero_()
    del gp
    assert_equal(predicted(copied), expected)


@pytest.mark.slow
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", ["mlp", "attention", "stateful"])
def test_pickled(name, space, used):
    gp = converted(network(name), space)
    expected = predicted(converted(network(name), space))
    if used:
        predicted(gp)
    assert_equal(predicted(pickle.loads(pickle.dumps(gp))), expected)


@pytest.mark.slow
def test_worker_processes():
    gps = [converted(network(name)) for name in ("mlp", "attention", "stateful")]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(work, gps, chunksize=1)
    for own, gp in zip(found, gps, strict=True):
        for a, b in zip(own, predicted(gp), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)  # another number of threads
