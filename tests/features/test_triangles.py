"""Products of factors by tiles and by groups of output channels, against one einsum over the rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dnn2gp.features.blocks import Lookup, Outer, Rows, outer
from dnn2gp.features.factors import Factors, _halvings


def factors(n: int, R: int, o: int, i: int, L: int, seed: int = 0) -> tuple[Factors, torch.Tensor]:
    """A convolution with a bias, a table and a plain block, and their rows by the definition of each."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    A, G, table, plain = normal(n, i, L), normal(n, R, o, L), normal(n, R, 4, 2), normal(n, R, 5)
    index = torch.randint(6, (n, 4), generator=generator)
    size = o * i
    blocks = (
        Outer(A, G, (slice(0, size),), scale=1.5),
        Lookup(index, table, (slice(size, size + 12),), 6),
        Rows(plain, (slice(size + 12, size + 17),)),
    )
    weights = 1.5 * torch.einsum("nrol,nil->nroi", G, A).flatten(2)
    entries = torch.einsum("nlv,nrld->nrvd", torch.nn.functional.one_hot(index, 6).double(), table).flatten(2)
    return Factors(blocks, size + 17), torch.cat([weights, entries, plain], -1)


CASES = {
    "rows are cheaper, all channels at once": (50, 3, 5, 4, 6, None),
    "rows are cheaper, two channels at a time": (50, 3, 5, 4, 6, 2 * 50 * 3 * (4 + 6)),
    "rows are cheaper, one channel at a time": (50, 3, 5, 4, 6, 1),
    "positions are cheaper": (50, 3, 20, 30, 2, None),
    "one position": (50, 3, 5, 4, 1, None),
    "many rows": (21, 17, 4, 3, 5, 64),
}


@pytest.mark.parametrize("case", CASES)
def test_products(case, monkeypatch):
    """Full, trace and diagonal, of one set of examples and of two."""
    *sizes, buffer = CASES[case]
    if buffer is not None:
        monkeypatch.setattr(outer, "_BUFFER", buffer)
    own, J = factors(*sizes)
    other, H = factors(sizes[0] - 9, *sizes[1:], seed=1)
    for right, rows in ((own, J), (other, H)):
        full = torch.einsum("nrp,mqp->nrmq", J, rows)
        tolerance = {"rtol": 1e-12, "atol": 1e-12 * float(full.abs().max())}
        torch.testing.assert_close(own.full(right), full, **tolerance)
        torch.testing.assert_close(own.trace(right), torch.einsum("nrmr->nm", full), **tolerance)
        torch.testing.assert_close(own.diagonal(right), torch.einsum("nrmr->nmr", full), **tolerance)


@settings(max_examples=200, deadline=None)
@given(start=st.integers(0, 50), count=st.integers(1, 300), size=st.integers(1, 70), unit=st.integers(1, 20))
def test_tiles_cover_one_triangle(start, count, size, unit):
    """Each pair of examples once, as (i, j) or as (j, i), or both ways in a tile on the diagonal."""
    times = torch.zeros(start + count, start + count, dtype=torch.int)
    tiles = _halvings(slice(start, start + count), size, unit)
    for rows, columns in tiles:
        times[rows, columns] += 1
        if rows != columns:
            times[columns, rows] += 1
        else:
            assert rows.stop - rows.start <= max(size, unit)
    assert (times[start:, start:] == 1).all()
    assert times.sum() == count**2
