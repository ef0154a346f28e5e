"""Kernels in a file: as in memory, and there only when complete."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from features.support import close, constant, engine, explicit, kernel, randn, tight_budget, various
from torch import nn


def small(budget: bool = True):
    """Features, inputs and J; with a budget that needs several blocks."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = randn(9, 3)
    features = engine(module, x)
    if budget:
        assert tight_budget(features, lambda: features.kernel_full(x, various(features))) >= 3
    return features, x, explicit(module, x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [constant, various])
@pytest.mark.parametrize("other", [None, 4], ids=["symmetric", "not symmetric"])
def test_as_in_memory(tmp_path, kind, other):
    """Full, trace and diagonal kernels; the tensor is a view of the file."""
    features, x, J = small()
    full = kernel(J, kind(features))[:, :, :other]
    rest = None if other is None else x[:other]
    expected = {
        "kernel_full": full,
        "kernel_trace": torch.einsum("nkmk->nm", full),
        "kernel_diagonal": torch.einsum("nkmk->nmk", full),
    }
    for name, values in expected.items():
        path = tmp_path / f"{name}.bin"
        found = getattr(features, name)(x, kind(features), rest, out=path)
        close(found, values)
        close(torch.from_file(str(path), size=values.numel(), dtype=torch.float64).view(values.shape), values)
        close(found, getattr(features, name)(x, kind(features), rest))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"{name}.bin" for name in expected)


def test_a_result_larger_than_the_budget(tmp_path):
    """In memory it is refused, in a file it is not."""
    features, x, J = small()
    features.memory_budget = 8 * (9 * 2) ** 2
    with pytest.raises(MemoryError, match="out=FILE"):
        features.kernel_full(x, constant(features))
    while True:
        try:
            found = features.kernel_full(x, constant(features), out=tmp_path / "kernel")
            break
        except MemoryError:
            features.memory_budget += 500
    close(found, kernel(J, constant(features)))


@pytest.mark.slow
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_nothing(tmp_path, monkeypatch, error, existing):
    """Nor does it touch the file that was there."""
    features, x, _ = small()
    path = tmp_path / "kernel"
    if existing:
        path.write_bytes(b"earlier")
    make, calls = features.factors, []

    def breaks(*args, **kwargs):
        calls.append(args)
        if len(calls) > 2:
            raise error("midway")
        assert path.exists() == existing
        return make(*args, **kwargs)

    monkeypatch.setattr(features, "factors", breaks)
    with pytest.raises(error, match="midway"):
        features.kernel_full(x, constant(features), out=path)
    assert [p.name for p in tmp_path.iterdir()] == (["kernel"] if existing else [])
    assert not existing or path.read_bytes() == b"earlier"


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room on the disk is not made in advance here")
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    """The file in progress is removed when there is no room for it."""
    features, x, _ = small()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        features.kernel_full(x, constant(features), out=tmp_path / "kernel")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced(tmp_path):
    """An older and longer one too."""
    features, x, J = small(budget=False)
    path = tmp_path / "kernel"
    path.write_bytes(b"x" * 10_000)
    close(features.kernel_full(x, constant(features), out=path), kernel(J, constant(features)))
    assert path.stat().st_size == 8 * 18**2


def test_single_precision(tmp_path):
    """A float32 network with a float64 precision gives a float64 file."""
    module, x = nn.Linear(3, 2), randn(5, 3).float()
    features = engine(module, x)
    J = explicit(module, x)
    for precision, dtype in ((constant(features), torch.float32), (constant(features).double(), torch.float64)):
        found = features.kernel_full(x, precision, out=tmp_path / "kernel")
        assert found.dtype == dtype
        close(found, kernel(J, precision), 1e-5)
