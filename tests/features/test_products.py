"""Matrix products by either library, compared with float64."""

from __future__ import annotations

import pytest
import torch

from dnn2gp.features.blocks import products
from dnn2gp.features.blocks.products import add_product, each_product, onednn_is_faster

SHAPES = [(200, 150, 128), (1, 1, 1), (64, 3000, 40), (700, 700, 33), (3, 5, 300_000)]


@pytest.fixture(params=[False, True], ids=["BLAS", "oneDNN"])
def library(request, monkeypatch):
    """One of the two libraries, however fast they are here."""
    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("torch has no oneDNN here")
    calls = []
    original = products._onednn
    monkeypatch.setattr(products, "onednn_is_faster", lambda: request.param)
    monkeypatch.setattr(products, "_onednn", lambda *given: calls.append(0) or original(*given))
    return request.param, calls


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_add_product_adds_to_a_part_of_a_matrix(library, m, n, k):
    left, right, total = tensors((m, k), (n, k), (m, n + 7))
    expected = total.double()
    expected[:, 3:-4] += 0.3 * left.double() @ right.double().T
    add_product(total[:, 3:-4], left, right, 0.3)
    torch.testing.assert_close(total.double(), expected, atol=3e-6 * k**0.5 * 10, rtol=0)
    assert bool(library[1]) == (library[0] and m * n * k >= products._LARGE)


def test_add_product_of_strided_rows(library):
    left, right, total = tensors((100, 2, 200), (2, 300, 400), (100, 300))
    expected = total.double() + left[:, 1].double() @ right[0, :, ::2].double().T
    add_product(total, left[:, 1], right[0, :, ::2])
    torch.testing.assert_close(total.double(), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("n", "m", "q", "k"), [(3, 160, 144, 100), (2, 4, 5, 6), (0, 160, 144, 100)])
def test_each_product(library, n, m, q, k, given):
    left, right, out = tensors((n, m, k), (n, k, q), (n, m, q))
    found = each_product(left, right.mT, out if given else None)
    torch.testing.assert_close(found.double(), left.double() @ right.double(), atol=1e-4, rtol=0)
    assert not given or found.data_ptr() == out.data_ptr()
    assert bool(library[1]) == (library[0] and n * m * q * k >= products._LARGE)


def test_products_that_are_differentiated_or_in_double_precision_stay_with_blas(library):
    left, right, total = tensors((200, 200), (200, 200), (200, 200))
    left.requires_grad_(True)
    each_product(left[None], right[None]).sum().backward()
    torch.testing.assert_close(left.grad, right.sum(0).expand(200, 200), atol=1e-4, rtol=1e-4)
    add_product(total.double(), right.double(), right.double())
    assert not library[1]


@pytest.mark.parametrize(
    ("vendor", "capability", "mkl", "expected"),
    [
        ("AuthenticAMD", "AVX512", True, True),
        ("GenuineIntel", "AVX512", True, False),
        ("AuthenticAMD", "AVX2", True, False),
        ("AuthenticAMD", "AVX512", False, False),
    ],
)
def test_the_choice_depends_on_the_processor_alone(vendor, capability, mkl, expected, monkeypatch):
    onednn_is_faster.cache_clear()
    monkeypatch.setattr(products, "_processor", lambda: f"vendor_id : {vendor}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    try:
        assert onednn_is_faster() is (expected and hasattr(torch.ops.mkldnn, "_linear_pointwise"))
    finally:
        onednn_is_faster.cache_clear()
