"""Work in threads: all parts in order, and an end to all of them where one fails."""

from __future__ import annotations

import time
from threading import Event

import pytest
import torch

from dnn2gp.paper.thread_pool import check_stopped, equal_parts, in_threads


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("count", "most"), [(1, 5), (3, 5), (10, 2), (10, 100)])
def test_parts_hold_everything_once_and_come_back_in_order(count, most):
    parts = equal_parts(count, most)
    assert max(part.stop - part.start for part in parts) <= most
    assert [place for part in in_threads(range(count).__getitem__, parts, "") for place in part] == list(range(count))


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_one_that_fails_ends_the_others(error):
    """Without waiting until they are done: the second part would last for ever."""
    begun, ended = Event(), Event()

    def work(part: slice) -> None:
        if part.start == 0:
            assert begun.wait(60)
            raise error
        begun.set()
        try:
            for _ in range(60_000):
                check_stopped()
                time.sleep(0.001)
        except KeyboardInterrupt:
            ended.set()
            raise

    with pytest.raises(error):
        in_threads(work, equal_parts(2, 1), "")
    assert ended.is_set()
    check_stopped()  # and nothing is left of it
