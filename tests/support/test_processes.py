"""The parts that need no second process: shares, `ALONE`, and digests. tests/contracts has the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp import Processes
from dnn2gp.gp.shared import team_of
from dnn2gp.support.errors import InputError
from dnn2gp.support.processes import ALONE, Team, _digest
from dnn2gp.support.randomness import normal_rows


class Numbered(Team):
    """A process that knows only its rank and the size."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    sum = largest = total = gathered = agree = together = ALONE.agree  # pyright: ignore


@pytest.mark.parametrize(("count", "size"), [(1, 1), (7, 1), (7, 2), (7, 3), (7, 7), (100, 6)])
def test_shares_hold_every_example_once(count: int, size: int) -> None:
    shares = [Numbered(rank, size).share(count) for rank in range(size)]
    assert [index for share in shares for index in range(count)[share]] == list(range(count))
    lengths = [share.stop - share.start for share in shares]
    assert max(lengths) - min(lengths) <= 1


def test_an_empty_share_is_an_error() -> None:
    with pytest.raises(InputError, match="data"):
        Numbered(0, 3).share(2)


def test_a_process_group_is_needed() -> None:
    with pytest.raises(InputError, match="torchrun"):
        Processes()


def test_processes_are_a_value() -> None:
    with pytest.raises(InputError, match="processes"):
        team_of(2)
    assert team_of(None) is ALONE


def test_alone_changes_nothing() -> None:
    own = torch.arange(3.0)
    assert ALONE.sum(own) is own
    assert ALONE.gathered(own) is own
    assert ALONE.counts(3) == (3,)
    assert ALONE.largest(2) == ALONE.smallest(2) == ALONE.total(2) == 2
    with ALONE.together():
        ALONE.agree({"anything": own})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("total", "columns"), [(1, 1), (15, 1), (17, 3), (4096, 1), (4097, 3), (8200, 2)])
def test_rows_of_one_random_matrix(total: int, columns: int, dtype: torch.dtype) -> None:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    first = generator()
    whole = torch.randn(total, columns, dtype=dtype, generator=first)
    cut = total // 3
    for own in (slice(0, cut), slice(cut, total), slice(0, total)):
        other = generator()
        assert torch.equal(normal_rows(total, own, columns, other, torch.empty(0, dtype=dtype)), whole[own])
        assert torch.equal(other.get_state(), first.get_state())


def test_digests_tell_values_apart_but_not_objects() -> None:
    values = [1.0, "a", None, torch.zeros(2), torch.zeros(2, 1), torch.zeros(2).double(), {"a": torch.ones(1)}, [1, 2]]
    assert len({_digest(value) for value in values}) == len(values)
    assert _digest(nn.Linear) == _digest(nn.Linear)
    assert _digest(lambda: 0) == _digest(lambda: 1)  # they differ only in their addresses
    assert _digest(torch.zeros(3, 2).T) == _digest(torch.zeros(2, 3))
    assert _digest(torch.tensor(1.0)) != _digest(torch.tensor(2.0))
    assert all(_digest(value) < 2**63 for value in values)
