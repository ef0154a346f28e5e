"""The orders in which a map can show its rows: by class, by uncertainty, by similarity."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Integer
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import pdist, squareform

from dnn2gp.plots.correlations import correlations
from dnn2gp.plots.report.section import InteractiveMap

NAMES = ("class", "uncertainty", "similarity")


def orders(shown: InteractiveMap) -> dict[str, Integer[np.ndarray, " N"]]:
    """For each name in `NAMES`, the example in each row from the top."""
    similar = similar_in_kernel if shown.is_kernel else similar_rows
    found = (by_class(shown.examples.labels), by_uncertainty(shown.examples.epistemic), similar(shown.values))
    return dict(zip(NAMES, found, strict=True))


def by_class(labels: Integer[np.ndarray, " N"]) -> Integer[np.ndarray, " N"]:
    """By increasing label; examples of a class keep their order."""
    return np.argsort(labels, kind="stable")


def by_uncertainty(epistemic: Float[np.ndarray, " N"]) -> Integer[np.ndarray, " N"]:
    """By decreasing epistemic variance; ties keep their order."""
    return np.argsort(-epistemic, kind="stable")


def similar_in_kernel(kernel: Float[np.ndarray, "N N"]) -> Integer[np.ndarray, " N"]:
    """Similar examples next to each other: the leaves of average linkage with d = 1 − ρ."""
    distances = 1 - correlations(kernel)
    np.fill_diagonal(distances, 0)
    return _leaves(squareform(distances, checks=False))


def similar_rows(values: Float[np.ndarray, "N K"]) -> Integer[np.ndarray, " N"]:
    """Similar rows next to each other: the leaves of average linkage with d = ‖row − row′‖."""
    return _leaves(pdist(values.astype(np.float64)))


def _leaves(distances: Float[np.ndarray, " pairs"]) -> Integer[np.ndarray, " N"]:
    if len(distances) == 0:  # one example: there is nothing to link
        return np.zeros(1, dtype=np.int64)
    # Branches are flipped so that neighbours are close. SciPy's order is not always optimal (its issue 11227), but any
    # order that the tree allows will do here.
    return leaves_list(linkage(distances, "average", optimal_ordering=True)).astype(np.int64)
