"""Products of factors by tiles and by groups of output channels, against one einsum over the rows."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dnn2gp.features.blocks import Lookup, Outer, Rows, outer
from dnn2gp.features.factors import Factors, _halvings


def factors(n: int, R: int, o: int, i: int, L: int, seed: int = 0) -> tuple[Factors, torch.Tensor]:
    """A convolution with a bias, a transposed weight, a table and a plain block, each with a scale, and their rows by
    the definition of each."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    A, G, table, plain = normal(n, i, L), normal(n, R, o, L), normal(n, R, 4, 2), normal(n, R, 5)
    A[:, -1] = 0.5  # a bias with another prior than its weight
    A2, G2, index = normal(n, i, L), normal(n, R, o, L), torch.randint(6, (n, 4), generator=generator)
    scale, stops = 1.5 + seed, torch.tensor([0, o * (i - 1), o, o * i, 12, 5]).cumsum(0).tolist()
    weight, bias, turned, entry, rest = (slice(*ends) for ends in pairwise(stops))
    blocks = (
        Outer(A, G, (weight, bias), scale=scale),
        Outer(A2, G2, (turned,), transposed=True, scale=2.0),
        Lookup(index, table, (entry,), 6),
        Rows(plain, (rest,), 0.5),
    )
    first = scale * torch.einsum("nrol,nil->nroi", G, A)
    rows = [
        first[..., :-1].flatten(2),
        first[..., -1],
        2.0 * torch.einsum("nrol,nil->nrio", G2, A2).flatten(2),
        torch.einsum("nlv,nrld->nrvd", torch.nn.functional.one_hot(index, 6).double(), table).flatten(2),
        0.5 * plain,
    ]
    return Factors(blocks, stops[-1]), torch.cat(rows, -1)


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
    n, R, o, i, L = sizes
    own, J = factors(*sizes)
    torch.testing.assert_close(own.rows(), J, rtol=1e-12, atol=1e-12)
    others = [factors(n - 9, R, o, i, L, seed=1), factors(n - 9, R, o, i, 2 * L + 1, seed=1)]
    for right, rows in [(own, J), *others]:
        full = torch.einsum("nrp,mqp->nrmq", J, rows)
        for dtype, eps in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
            tolerance = {"rtol": 0, "atol": eps * float(full.abs().max()), "check_dtype": False}
            left = own.to(dtype)
            mate = left if right is own else right.to(dtype)
            torch.testing.assert_close(left.full(mate), full, **tolerance)
            torch.testing.assert_close(left.trace(mate), torch.einsum("nrmr->nm", full), **tolerance)
            torch.testing.assert_close(left.diagonal(mate), torch.einsum("nrmr->nmr", full), **tolerance)
    more, H = factors(n - 9, R + 1, o, i, L, seed=2)
    full = torch.einsum("nrp,mqp->nrmq", J, H)
    torch.testing.assert_close(own.full(more), full, rtol=0, atol=1e-13 * float(full.abs().max()))


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


def test_gradients_of_a_symmetric_product():
    """Where factors carry gradients, as by the definition."""

    def kernel(A: torch.Tensor, G: torch.Tensor) -> torch.Tensor:
        own = Factors((Outer(A, G, (slice(0, 20),)),), 20)
        return own.full(own)

    own, _ = factors(40, 3, 5, 4, 6)
    A, G = (tensor.clone().requires_grad_(True) for tensor in own.blocks[0].tensors())
    weights = torch.randn(40, 3, 40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    J = torch.einsum("nrol,nil->nroi", G, A)
    expected = torch.autograd.grad((torch.einsum("nroi,mqoi->nrmq", J, J) * weights).sum(), (A, G))
    found = torch.autograd.grad((kernel(A, G) * weights).sum(), (A, G))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13 * float(theirs.abs().max()))
