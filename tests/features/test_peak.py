"""The peak of memory that a computation has for n examples, from watching two and three."""

from __future__ import annotations

import pytest
import torch

from dnn2gp.features.budget.peak import Peak, peak_of

MARGIN = 1.2


def test_lines_of_a_computation():
    """Two phases: one grows with the examples, one does not; numbers of 8 bytes."""

    def work(n):
        large = torch.zeros(1000, dtype=torch.float64)
        del large
        first = torch.zeros(n, 10, dtype=torch.float64)
        second = first + 1
        del first
        return second.sum(1)

    peak = peak_of(work)
    for n in (1, 2, 5, 70, 1000):
        assert peak(n) == int(MARGIN * max(8000, 2 * 80 * n))


def test_what_was_there_before_does_not_count():
    weights = torch.zeros(1000, dtype=torch.float64)
    assert peak_of(lambda n: weights.view(10, 100)[:n].sum(1))(50) == int(MARGIN * 8 * 50)


def test_backward_passes_count():
    weight = torch.zeros(7, 5, dtype=torch.float64, requires_grad=True)

    def work(n):
        hidden = (torch.zeros(n, 7, dtype=torch.float64) @ weight).tanh()
        return torch.autograd.grad(hidden.sum(), weight)[0]

    assert peak_of(work)(1000) >= 8 * 1000 * (7 + 5 + 5)


def test_work_that_is_not_the_same_for_two_and_three():
    """Each pair of examples is counted as the first: never too little here."""

    def work(n):
        kept = [torch.zeros(100, dtype=torch.float64) for _ in range(n)]
        return torch.stack(kept)

    peak = peak_of(work)
    for n in (2, 3, 50):
        assert peak(n) >= 2 * 800 * n


def test_the_most_examples():
    peak = Peak(((100.0, 10.0), (500.0, 1.0)))
    assert (peak(1), peak(40), peak(60)) == (501, 540, 700)
    assert [peak.most(budget) for budget in (500, 501, 540, 700)] == [0, 1, 40, 60]
    assert Peak(((5.0, 0.0),)).most(5) > 1e9
    assert all(peak(peak.most(budget)) <= budget < peak(peak.most(budget) + 1) for budget in range(501, 2000, 7))


def test_sums():
    peak = Peak(((100.0, 10.0), (500.0, 1.0))).plus(5, 2)
    assert (peak(1), peak(100)) == (508, 1305)
    held = Peak(((10.0, 3.0),)).or_held((30, 40), Peak(((100.0, 0.0),)))
    assert [held(n) for n in (1, 10, 1000)] == [120, 210, 10110]


def test_times():
    assert Peak(((100.0, 16.0),)).times(2.5)(3) == 2.5 * 148


def test_what_is_done_once_does_not_count_for_each_example():
    once = []

    def work(n):
        if not once:
            once.append(torch.zeros(10_000))
        return torch.zeros(n, dtype=torch.float64)

    assert peak_of(work)(100) == int(MARGIN * 800)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_the_collector_on(error):
    import gc

    def work(n):
        raise error

    with pytest.raises(error):
        peak_of(work)
    assert gc.isenabled()
