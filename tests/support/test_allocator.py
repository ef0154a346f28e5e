"""Where malloc takes blocks from while a small memory budget is in force, by the counts of the C library itself."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from torch import nn

from dnn2gp import Diagonal, GaussianLikelihood, convert
from dnn2gp.support.allocator import returning_blocks, sparing

SMALL, LARGE = 100_000_000, 4_000_000_000
BLOCK = 16 << 20
FILLING = 20
_C = ctypes.CDLL(None)

pytestmark = pytest.mark.skipif(not hasattr(_C, "mallinfo2"), reason="glibc 2.33 or newer counts its blocks")


class Counts(ctypes.Structure):
    """struct mallinfo2 of malloc.h; hblks is the number of blocks that are mapped one by one."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (*"abc", "hblks", *"efghij")  # ten numbers, of which the fourth matters
    ]


def mapped(size: int) -> bool:
    """Whether a block of this size is mapped, and returns to the system once it is freed.

    Where the heap has room for it, it is not. Therefore other blocks, which nobody writes to, fill the heap first.
    """
    _C.mallinfo2.restype, _C.malloc.restype, _C.free.argtypes = Counts, ctypes.c_void_p, [ctypes.c_void_p]
    _C.malloc_trim(0)
    blocks = [_C.malloc(ctypes.c_size_t(size)) for _ in range(FILLING)]
    before = _C.mallinfo2().hblks
    blocks.append(_C.malloc(ctypes.c_size_t(size)))
    during = _C.mallinfo2().hblks
    for block in blocks:
        _C.free(block)
    _C.malloc_trim(0)
    return during > before


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins and ends with blocks of up to 32 MiB in the heap."""
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    with returning_blocks(SMALL):
        pass
    assert not mapped(BLOCK)
    yield
    assert not mapped(BLOCK)


def test_a_small_budget_has_blocks_mapped() -> None:
    with returning_blocks(SMALL):
        assert mapped(BLOCK)
        with returning_blocks(SMALL // 2):
            assert mapped(BLOCK)
        assert mapped(BLOCK)


def test_a_large_budget_changes_nothing() -> None:
    with returning_blocks(LARGE):
        assert not mapped(BLOCK)
    assert [mapped(BLOCK) for _ in sparing(range(3), LARGE)] == [False] * 3


def test_a_tiny_budget_leaves_small_blocks_in_the_heap() -> None:
    with returning_blocks(2000):
        assert not mapped(65536)
        assert mapped(BLOCK)


def test_only_while_parts_are_in_use() -> None:
    assert [mapped(BLOCK) for _ in sparing(range(3), SMALL)] == [True] * 3
    assert not mapped(BLOCK)


def test_an_error_or_a_loop_that_is_left() -> None:
    with suppress(ZeroDivisionError):
        for part in sparing(range(3), SMALL):
            _ = 1 / part
    assert not mapped(BLOCK)
    for part in sparing(range(3), SMALL):
        if part == 1:
            break
    assert not mapped(BLOCK)


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_MMAP_THRESHOLD_", "1000000"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1000000")],
)
def test_limits_of_the_user_hold(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with returning_blocks(SMALL):
        assert not mapped(BLOCK)


@pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")
@pytest.mark.parametrize(("budget", "expected"), [(SMALL, True), (LARGE, False)])
def test_whole_calls(budget: int, expected: bool) -> None:
    """The network itself looks, in every pass of convert, predict and kernel; afterwards all is as before."""
    seen: list[bool] = []

    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(mapped(BLOCK))
            return x

    network = nn.Sequential(nn.Linear(3, 2), Looking()).double().eval()
    x, y = torch.randn(40, 3).double(), torch.randn(40, 2).double()
    gp = convert(network, (x, y), GaussianLikelihood(0.5), 1.0, structure=Diagonal(), memory_budget=budget)
    for call in (lambda: gp.predict(x), lambda: gp.kernel.full(x), lambda: gp.features.outputs(x)):
        seen.clear()
        call()
        assert seen[-1] == expected
        assert not mapped(BLOCK)
