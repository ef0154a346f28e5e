"""The orders of the rows, against oracles that link and order by brute force."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from plots.report.made import examples, kernel, kernel_map, mean_map

from dnn2gp.plots.matrices import correlations
from dnn2gp.plots.report.maps import NAMES, by_class, by_uncertainty, orders, similar_in_kernel, similar_rows

Tree = int | tuple  # a leaf, or a pair of trees


def leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [leaf for part in tree for leaf in leaves(part)]


def average_linkage(distances: np.ndarray) -> Tree:
    """The two clusters with the least mean distance between their members are joined, until one is left."""
    clusters: list[Tree] = list(range(len(distances)))
    while len(clusters) > 1:
        pairs = [(a, b) for i, a in enumerate(clusters) for b in clusters[i + 1 :]]
        closest = min(pairs, key=lambda pair: distances[np.ix_(leaves(pair[0]), leaves(pair[1]))].mean())
        clusters = [each for each in clusters if each not in closest] + [closest]
    return clusters[0]


def layouts(tree: Tree) -> list[list[int]]:
    """All orders of the leaves that turning pairs around can give."""
    if isinstance(tree, int):
        return [[tree]]
    both = [(a, b) for a, b in product(layouts(tree[0]), layouts(tree[1]))]
    return [order for a, b in both for order in (a + b, b + a)]


def length(order: list[int], distances: np.ndarray) -> float:
    return sum(distances[a, b] for a, b in pairwise(order))


def expect_from_tree(order: np.ndarray, distances: np.ndarray) -> None:
    """The order is one that the tree allows, and shorter than most of these."""
    allowed = layouts(average_linkage(distances))
    assert order.tolist() in allowed
    assert length(order.tolist(), distances) <= np.median([length(each, distances) for each in allowed])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [2, 3, 7])
def test_similar_in_kernel(count: int, seed: int) -> None:
    values = kernel(examples(count), seed)
    scale = np.array([np.sqrt(values[i, i]) for i in range(count)])
    expect_from_tree(similar_in_kernel(values), 1 - values / np.outer(scale, scale))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [2, 3, 7])
def test_similar_rows(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(count, 3))
    expect_from_tree(similar_rows(values), np.linalg.norm(values[:, None] - values[None], axis=-1))


def test_blocks_come_together() -> None:
    group = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    ordered = group[similar_in_kernel((group[:, None] == group[None]) + 0.1 * np.eye(9))]
    assert np.count_nonzero(np.diff(ordered)) == 2


def test_one_example() -> None:
    assert similar_in_kernel(np.array([[2.0]])).tolist() == [0]
    assert similar_rows(np.array([[2.0, 1.0]])).tolist() == [0]


@pytest.mark.parametrize("diagonal", [0.0, -1.0, 1e-300])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.filterwarnings("error")
def test_bad_diagonals(count: int, diagonal: float) -> None:
    values = kernel(examples(count))
    values[0, 0] = diagonal
    assert sorted(similar_in_kernel(values)) == list(range(count))
    assert sorted(similar_in_kernel(np.zeros((count, count)))) == list(range(count))
    assert np.isfinite(correlations(values)).all()


def test_by_class_keeps_the_order_within() -> None:
    assert by_class(np.array([2, 0, 1, 0, 2])).tolist() == [1, 3, 2, 0, 4]


def test_by_uncertainty_is_largest_first() -> None:
    assert by_uncertainty(np.array([0.1, 0.5, 0.1, 0.9])).tolist() == [3, 1, 0, 2]


@pytest.mark.parametrize("make", [kernel_map, mean_map])
def test_every_map_has_all_orders(make) -> None:
    found = orders(make(examples(9)))
    assert tuple(found) == NAMES
    assert all(sorted(order) == list(range(9)) for order in found.values())
