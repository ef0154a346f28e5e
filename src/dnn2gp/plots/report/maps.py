"""The data of the interactive maps: matrices, orders, and the examples with all their images in one sprite."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, Integer, UInt8
from matplotlib.colors import to_hex
from PIL import Image
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import pdist, squareform

from dnn2gp.plots import style
from dnn2gp.plots.matrices import correlations
from dnn2gp.plots.report.section import Examples, InteractiveMap
from dnn2gp.plots.report.template import png_address

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


_STEPS = 65  # colours in the scale; the script interpolates between them


def map_data(shown: InteractiveMap) -> dict[str, Any]:
    """A map, without its examples."""
    rows, columns = shown.values.shape
    return {
        "rows": rows,
        "columns": columns,
        "names": None if shown.columns is None else list(shown.columns),
        "values": b64encode(shown.values.astype("<f4").tobytes()).decode("ascii"),
        "limit": style.colour_limit(shown.values),
        "scale": shown.scale,
        "colours": diverging(),
        "orders": {name: order.tolist() for name, order in orders(shown).items()},
    }


def examples_data(examples: Examples) -> dict[str, Any]:
    """What the panel next to a map shows of each example, and the colours of the classes."""
    return {
        "sprite": png_address(_png(sprite(examples.images))),
        "height": examples.images.shape[1],
        "width": examples.images.shape[2],
        "across": across(len(examples)),
        "classes": list(examples.classes),
        "colours": class_colours(len(examples.classes)),
        "labels": examples.labels.tolist(),
        "predictions": examples.predictions.tolist(),
        "probabilities": _rounded(examples.probabilities),
        "epistemic": _rounded(examples.epistemic),
        "aleatoric": _rounded(examples.aleatoric),
    }


def sprite(images: UInt8[np.ndarray, "N H W *colour"]) -> UInt8[np.ndarray, "height width *colour"]:
    """All images in one picture, row by row with `across` images per row; the rest of the last row is black."""
    count, height, width, *colour = images.shape
    wide = across(count)
    high = -(-count // wide)
    filled = np.zeros((high * wide, height, width, *colour), dtype=np.uint8)
    filled[:count] = images
    grid = filled.reshape(high, wide, height, width, *colour)
    return np.ascontiguousarray(grid.swapaxes(1, 2)).reshape(high * height, wide * width, *colour)


def across(count: int) -> int:
    """The number of images per row of the sprite: ⌈√N⌉."""
    return int(np.ceil(np.sqrt(count)))


def diverging() -> list[list[Any]]:
    """The diverging colour map of all pictures as pairs of position in [0, 1] and colour."""
    table = matplotlib.colormaps[style.DIVERGING]
    return [[float(place), to_hex(table(place))] for place in np.linspace(0, 1, _STEPS)]


def class_colours(count: int) -> list[str]:
    """The colours of the classes, as in all pictures."""
    table = style.class_colours(count)
    return [to_hex(table(i)) for i in range(count)]


def _png(picture: UInt8[np.ndarray, "height width *colour"]) -> bytes:
    written = BytesIO()
    Image.fromarray(picture).save(written, format="PNG", optimize=True)
    return written.getvalue()


def _rounded(numbers: Float[np.ndarray, " N"]) -> list[float]:
    """Rounded to six digits: the panel shows four."""
    return [float(f"{number:.6g}") for number in numbers.tolist()]
