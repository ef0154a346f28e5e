"""The checks of shapes and types that all tests rely on: they are there, and they end after some calls."""

from __future__ import annotations

import checked_calls
import pytest
import torch
from jaxtyping import TypeCheckError

from dnn2gp import GaussianLikelihood
from dnn2gp.network.layout import Layout
from dnn2gp.tune.ensemble import layout_of


def test_a_wrong_shape_and_a_wrong_type_are_found():
    with pytest.raises(TypeCheckError):
        GaussianLikelihood(1.0).loss(torch.zeros(3, 1), torch.zeros(4, 1))
    with pytest.raises(TypeCheckError):
        layout_of("no module")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeCheckError):
        Layout("ab", ())  # pyright: ignore[reportArgumentType]


def test_the_first_calls_are_checked_and_then_no_more():
    layout = Layout(("a",), (torch.Size([2]),))
    for _ in range(checked_calls.FIRST):
        with pytest.raises(TypeCheckError):
            layout.unflatten(torch.zeros(1, 2))
    with pytest.raises(RuntimeError):
        layout.unflatten(torch.zeros(1, 3))  # torch's own
    checked_calls.forget()
    with pytest.raises(TypeCheckError):
        layout.unflatten(torch.zeros(1, 2))
