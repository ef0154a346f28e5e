"""Many threads on one module and one GP: every result as in one thread, and the module as it was.

DNN2GP_THREAD_CALLS=200 makes the six threads call 200 times each.
"""

from __future__ import annotations

import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from robust.shared_networks import NETWORKS, converted, network, predicted
from robust.support import untouched

THREADS, CALLS = 6, int(os.environ.get("DNN2GP_THREAD_CALLS", "3"))
pytestmark = [
    pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning"),
    pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.TrainModeWarning"),
    pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.FallbackWarning"),
]


@pytest.fixture(autouse=True)
def _switching_often():
    """Threads take turns a thousand times as often as usual, so that they meet everywhere."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def equal(found, expected) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("space", ["function", "weight"])
@pytest.mark.parametrize("name", NETWORKS)
def test_predict_and_convert_from_many_threads(name, space):
    module = network(name)
    with warnings.catch_warnings():
        expected = predicted(converted(module, space))
        shared = converted(module, space)

        def call(number: int) -> bool:
            gp = shared if number % 2 else converted(module, space)
            return equal(predicted(gp), expected)

        filters = list(warnings.filters)
        with untouched(module), ThreadPoolExecutor(THREADS) as pool:
            assert all(pool.map(call, range(THREADS * CALLS)))
        assert list(warnings.filters) == filters
