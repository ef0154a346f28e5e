"""Correlations of a kernel beside numpy's, and by hand."""

from __future__ import annotations

import numpy as np

from dnn2gp.plots.matrices import correlations


def test_correlations_are_those_of_numpy() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 1000))
    rows -= rows.mean(1, keepdims=True)
    np.testing.assert_allclose(correlations(rows @ rows.T), np.corrcoef(rows), atol=1e-12)


def test_correlations_without_variance_are_0() -> None:
    values = np.array([[4.0, 2.0, 1.0], [2.0, 9.0, 1.0], [1.0, 1.0, 0.0]])
    expected = np.array([[1, 1 / 3, 0], [1 / 3, 1, 0], [0, 0, 0]])
    np.testing.assert_allclose(correlations(values), expected)
